-- Enters a worker in the registry, or says that it is still there. Answers the shortest staleness of its queues.
-- $1 id · $2 hostname · $3 pid · $4 version · $5 queues · $6 kinds · $7 concurrency
INSERT INTO awa.workers (id, hostname, pid, version, queues, kinds, concurrency)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (id) DO UPDATE
SET heartbeat_at = now(), queues = excluded.queues, kinds = excluded.kinds, concurrency = excluded.concurrency
RETURNING (SELECT min(staleness) FROM awa.queues WHERE name = ANY ($5::text[])) AS staleness
