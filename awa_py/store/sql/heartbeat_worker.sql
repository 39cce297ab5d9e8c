-- Insert a worker's row or renew its heartbeat, and return its directives, one row per queue. If the row was deleted
-- while the worker could not send heartbeats, its subscriptions to wake-ups are inserted again too.
-- $1 id · $2 hostname · $3 pid · $4 version · $5 queues · $6 kinds · $7 concurrency · $8 whether it wants wake-ups
-- $9 label · $10 the slots of each queue · $11 the start of the server where it holds its lock; NULL: it has no lock
-- $12 whether it is quiet, used only if the row is inserted · $13 whether it is stopping
-- $14 how long a worker may be silent and keep its share
--
-- A paused queue has 0 slots. If the leader has not split a queue yet, the worker gets an equal share of the live
-- workers.
WITH worker AS (
    INSERT INTO awa.workers (id, hostname, pid, version, queues, kinds, concurrency, label, limits, locked_on, quiet,
                             stopping)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $9, $10, $11, $12, $13)
    ON CONFLICT (id) DO UPDATE
    SET heartbeat_at = clock_timestamp(), locked_on = excluded.locked_on, stopping = workers.stopping OR excluded.stopping
    RETURNING id, quiet, stopping
),
listening AS (
    INSERT INTO awa.listening (queue, worker_id)
    SELECT unnest($5::text[]), id FROM worker WHERE $8
    ON CONFLICT DO NOTHING
)
SELECT declared.name AS queue, q.name IS NOT NULL AS is_known, q.staleness,
       CASE WHEN q.paused AND q.paused_until > now() IS NOT FALSE THEN 0
            WHEN q.max_workers IS NOT NULL THEN coalesce(
                (SELECT slots FROM awa.slots WHERE slots.queue = q.name AND slots.worker_id = $1),
                ceil(q.max_workers::numeric
                     / (1 + (SELECT count(*) FROM awa.workers w
                             WHERE w.id <> $1 AND w.heartbeat_at > now() - $14::interval
                               AND NOT w.quiet AND NOT w.stopping AND q.name = ANY (w.queues))))::int)
       END AS slots,
       q.max_workers IS NOT NULL OR q.rate_jobs IS NOT NULL AS limited,
       q.rate_jobs / extract(epoch FROM q.rate_period)::float8 AS rate,
       worker.quiet, worker.stopping
FROM worker CROSS JOIN unnest($5::text[]) AS declared(name) LEFT JOIN awa.queues q ON q.name = declared.name
