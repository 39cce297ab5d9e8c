-- The unfinished children of jobs. · $1 ids of the parents
SELECT id FROM awa.ready WHERE parent_id = ANY ($1::bigint[])
UNION ALL
SELECT id FROM awa.scheduled WHERE parent_id = ANY ($1)
UNION ALL
SELECT id FROM awa.running WHERE parent_id = ANY ($1) AND cancel_requested_at IS NULL
