-- Jobs by id, in whatever state.
-- $1 ids
SELECT {shown}
FROM awa.jobs
WHERE id = ANY ($1::bigint[])
