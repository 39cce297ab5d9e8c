-- The results of checkpoints. · $1 job ids · $2 names
SELECT job_id, name, result::text AS result
FROM awa.checkpoints
WHERE (job_id, name) IN (SELECT * FROM unnest($1::bigint[], $2::text[]))
