-- Write the shares that changed, and notify the workers. A worker whose row is being deleted gets none.
-- $1 queues · $2 worker ids · $3 slots; NULL: delete the share
WITH changes AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::uuid[], $3::int[]) AS c(queue, worker_id, slots)
),
existing AS MATERIALIZED (
    SELECT id FROM awa.workers WHERE id = ANY ($2::uuid[]) FOR KEY SHARE SKIP LOCKED
),
written AS (
    INSERT INTO awa.slots (queue, worker_id, slots)
    SELECT queue, worker_id, slots FROM changes WHERE slots IS NOT NULL AND worker_id IN (SELECT id FROM existing)
    ON CONFLICT (queue, worker_id) DO UPDATE SET slots = excluded.slots
    RETURNING queue
),
deleted AS (
    DELETE FROM awa.slots s
    USING changes c
    WHERE s.queue = c.queue AND s.worker_id = c.worker_id AND c.slots IS NULL
    RETURNING s.queue
),
changed AS (
    SELECT queue, count(*) AS shares FROM (TABLE written UNION ALL TABLE deleted) AS each GROUP BY queue
)
SELECT coalesce(sum(shares), 0)::int AS shares, count(pg_notify('awa', 'queues:' || queue)) AS notified FROM changed
