-- The jobs that a job has started, in their order.
-- $1 the parent's id
SELECT {shown}
FROM awa.jobs
WHERE parent_id = $1
ORDER BY id
