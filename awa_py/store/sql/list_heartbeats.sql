-- The workers, with the seconds since their last heartbeat, longest first.
-- $1 at most this many
SELECT hostname, pid, version, queues, kinds, extract(epoch FROM now() - heartbeat_at)::float8 AS silent_s
FROM awa.workers
ORDER BY heartbeat_at
LIMIT $1
