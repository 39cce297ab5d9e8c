-- Enters a worker in the registry, or says that it is still there. Answers the shortest staleness of its queues.
-- A worker that was swept while it could not beat has lost what it entered in `listening`: it enters that again.
-- $1 id · $2 hostname · $3 pid · $4 version · $5 queues · $6 kinds · $7 concurrency · $8 whether it wants to be woken
WITH beat AS (
    INSERT INTO awa.workers (id, hostname, pid, version, queues, kinds, concurrency)
    VALUES ($1, $2, $3, $4, $5, $6, $7)
    ON CONFLICT (id) DO UPDATE
    SET heartbeat_at = now(), queues = excluded.queues, kinds = excluded.kinds, concurrency = excluded.concurrency
    RETURNING id
),
listening AS (
    INSERT INTO awa.listening (queue, worker_id)
    SELECT unnest($5::text[]), id FROM beat WHERE $8
    ON CONFLICT DO NOTHING
)
SELECT min(staleness) FROM awa.queues WHERE name = ANY ($5::text[])
