-- The live workers of a queue, with their shares (if the queue has max_workers) and their running jobs.
-- $1 queue · $2 staleness: workers that were silent for longer are dead
SELECT w.id, w.label, w.hostname, w.pid, s.slots, coalesce(busy.jobs, 0)::int AS running
FROM awa.workers w
LEFT JOIN awa.slots s ON s.worker_id = w.id AND s.queue = $1
LEFT JOIN (SELECT worker_id, count(*) AS jobs FROM awa.running WHERE queue = $1 GROUP BY worker_id) AS busy
       ON busy.worker_id = w.id
WHERE w.heartbeat_at > now() - $2::interval AND $1 = ANY (w.queues)
ORDER BY w.label, w.hostname, w.pid, w.id
