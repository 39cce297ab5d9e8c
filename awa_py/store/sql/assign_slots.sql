-- Writes the parts of queues that changed, and tells the workers. One that leaves in this moment gets none.
-- $1 queues · $2 worker ids · $3 how many slots each has there; NULL: none any more
WITH changed AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::uuid[], $3::int[]) AS c(queue, worker_id, slots)
),
there AS MATERIALIZED (
    SELECT id FROM awa.workers WHERE id = ANY ($2::uuid[]) FOR KEY SHARE SKIP LOCKED
),
written AS (
    INSERT INTO awa.slots (queue, worker_id, slots)
    SELECT queue, worker_id, slots FROM changed WHERE slots IS NOT NULL AND worker_id IN (SELECT id FROM there)
    ON CONFLICT (queue, worker_id) DO UPDATE SET slots = excluded.slots
    RETURNING queue
),
removed AS (
    DELETE FROM awa.slots s
    USING changed c
    WHERE s.queue = c.queue AND s.worker_id = c.worker_id AND c.slots IS NULL
    RETURNING s.queue
),
told AS (SELECT queue, count(*) AS parts FROM (TABLE written UNION ALL TABLE removed) AS each GROUP BY queue)
SELECT coalesce(sum(parts), 0)::int, count(pg_notify('awa', 'queues:' || queue)) FROM told
