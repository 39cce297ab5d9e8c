-- A job's state, and its result and errors where it is final: what somebody who waits for it asks again and again.
-- $1 id
SELECT state, result::text AS result, errors -> -1 ->> 'error' AS error
FROM awa.jobs
WHERE id = $1
