-- A job's state, result and last error. Callers that wait for a job run this repeatedly.
-- $1 id
SELECT state, result::text AS result, errors -> -1 ->> 'error' AS error
FROM awa.jobs
WHERE id = $1
