-- The children of a job, in order of id.
-- $1 the parent's id
SELECT {shown}
FROM (SELECT * FROM awa.jobs WHERE parent_id = $1 OFFSET 0) AS children  -- not a scan of all jobs in the order of id
ORDER BY id
