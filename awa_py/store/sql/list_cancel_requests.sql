-- Which of a worker's running jobs somebody wants to stop: for where no notification can be heard.
-- $1 ids · $2 leases
SELECT r.id
FROM unnest($1::bigint[], $2::int[]) AS mine(id, lease)
JOIN awa.running r ON r.id = mine.id AND r.lease = mine.lease
WHERE r.cancel_requested_at IS NOT NULL
