-- The workers, with their running jobs and their shares of queues with max_workers.
-- $1 staleness: workers that were silent for longer are dead
SELECT w.id, w.label, w.hostname, w.pid, w.version, w.queues, w.limits, w.kinds, w.concurrency, w.quiet, w.stopping,
       w.started_at, w.heartbeat_at, extract(epoch FROM now() - w.heartbeat_at)::float8 AS silent_s,
       w.heartbeat_at > now() - $1::interval AS alive, w.locked_on, coalesce(busy.jobs, 0) AS running,
       coalesce((SELECT jsonb_object_agg(s.queue, jsonb_build_object('slots', s.slots, 'max_workers', q.max_workers))
                 FROM awa.slots s JOIN awa.queues q ON q.name = s.queue
                 WHERE s.worker_id = w.id AND q.max_workers IS NOT NULL), '{}')::text AS slots
FROM awa.workers w
LEFT JOIN (SELECT worker_id, count(*) AS jobs FROM awa.running GROUP BY worker_id) AS busy ON busy.worker_id = w.id
ORDER BY w.started_at, w.id
