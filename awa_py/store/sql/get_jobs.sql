-- Jobs by id, in any state.
-- $1 ids
SELECT {shown}
FROM awa.jobs
WHERE id = ANY ($1::bigint[])
