-- The children of a job, in order of id.
-- $1 the parent's id
SELECT {shown}
FROM awa.jobs
WHERE parent_id = $1
ORDER BY id
