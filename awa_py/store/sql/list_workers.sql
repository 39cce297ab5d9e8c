-- The registry, with how many jobs each worker runs.
-- $1 staleness: workers silent for longer are dead
SELECT w.id, w.hostname, w.pid, w.version, w.queues, w.kinds, w.concurrency, w.started_at, w.heartbeat_at,
       extract(epoch FROM now() - w.heartbeat_at)::float8 AS silent_s, w.heartbeat_at > now() - $1::interval AS alive,
       (SELECT count(*) FROM awa.running r WHERE r.worker_id = w.id) AS running
FROM awa.workers w
ORDER BY w.started_at, w.id
