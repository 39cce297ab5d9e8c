-- Tell workers to be quiet or to resume, or to stop. Notify them, and the leader, because their shares may change.
-- $1 ids · $2 quiet (NULL: no change) · $3 whether they have to stop
WITH changed AS (
    UPDATE awa.workers SET quiet = coalesce($2, quiet), stopping = stopping OR $3
    WHERE id = ANY ($1::uuid[])
    RETURNING id
)
SELECT id, pg_notify('awa', 'workers:' || id), pg_notify('awa' || ':leader', 'queues:') FROM changed
