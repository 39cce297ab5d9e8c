-- Tells workers to be quiet or to go on, or to stop, and the leader that their parts may change.
-- $1 ids · $2 whether they are to be quiet; NULL: as they were · $3 whether they are to stop
WITH told AS (
    UPDATE awa.workers SET quiet = coalesce($2, quiet), stopping = stopping OR $3
    WHERE id = ANY ($1::uuid[])
    RETURNING id
)
SELECT id, pg_notify('awa', 'workers:' || id), pg_notify('awa' || ':leader', 'queues:') FROM told
