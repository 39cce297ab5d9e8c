-- The registry, with how long each worker has been silent.
-- $1 how many at the most
SELECT hostname, pid, version, queues, kinds, extract(epoch FROM now() - heartbeat_at)::float8 AS silent_s
FROM awa.workers
ORDER BY heartbeat_at
LIMIT $1
