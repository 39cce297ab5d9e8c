-- Count the jobs that were discarded because of their values, among the latest failed and cancelled jobs.
-- $1 look at this many jobs
SELECT count(*)
FROM (SELECT errors FROM awa.dead ORDER BY finalized_at DESC LIMIT $1) AS latest
WHERE errors -> -1 ? 'invalid'
