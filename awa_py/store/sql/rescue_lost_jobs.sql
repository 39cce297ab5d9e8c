-- running → retryable or failed, for jobs of lost workers: silent, and the session that held their advisory lock has
-- ended. A frozen or disconnected worker keeps its session. After a restart of the server, only workers that have sent
-- a heartbeat since can be lost. Deletes the rows of lost workers that have no jobs left.
-- Jobs with a concurrency key wait until they are stale: the worker may be alive, and only cannot connect. By then it
-- has stopped their handlers, so that no two handlers of an ordered key run at once.
-- $1 how long the worker must have been silent, and the leader must have led · $2 at most this many jobs
-- Returns one row: the rescued jobs as arrays, the number of removed workers, and the seconds until another worker will
-- have been silent for long enough. Reads running jobs only if a worker is lost.
WITH lost_workers AS MATERIALIZED (
    SELECT w.id
    FROM awa.workers w
    WHERE w.heartbeat_at < now() - $1::interval
      AND w.locked_on = pg_postmaster_start_time()
      AND (SELECT elected_at FROM awa.leader) < now() - $1::interval
      AND NOT EXISTS (SELECT FROM pg_locks
                      WHERE locktype = 'advisory' AND objsubid = 2
                        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
                        AND classid = hashtext('awa' || ':workers')::oid AND objid = hashtext(w.id::text)::oid)
    FOR UPDATE OF w SKIP LOCKED  -- a worker that comes back now has to wait, and then learns what it lost
),
lost_jobs AS MATERIALIZED (
    SELECT r.id, r.lease
    FROM awa.running r
    WHERE EXISTS (SELECT FROM lost_workers) AND r.worker_id = ANY (ARRAY(SELECT id FROM lost_workers))
      AND r.concurrency_key IS NULL
    ORDER BY r.attempted_at
    LIMIT $2
    FOR UPDATE OF r SKIP LOCKED
),
rescued AS MATERIALIZED (
    SELECT rescued.*, pg_notify('awa', 'lost:' || rescued.id || ':' || rescued.lease)
    FROM (SELECT array_agg(id) AS ids, array_agg(lease) AS leases, count(*)::int AS n FROM lost_jobs) AS l
    CROSS JOIN LATERAL awa.fail_attempts(
        l.ids, l.leases, array_fill('worker gone: its session ended'::text, ARRAY[l.n]),
        array_fill(NULL::interval, ARRAY[l.n]), true) AS rescued
),
removed AS (
    DELETE FROM awa.workers w
    USING lost_workers
    WHERE w.id = lost_workers.id
      AND w.id <> ALL (ARRAY(SELECT worker_id FROM awa.running WHERE worker_id = ANY (ARRAY(SELECT id FROM lost_workers))))
    RETURNING 1
)
SELECT coalesce(array_agg(id), '{}') AS ids, coalesce(array_agg(queue), '{}') AS queues,
       coalesce(array_agg(kind), '{}') AS kinds, coalesce(array_agg(attempt), '{}') AS attempts,
       coalesce(array_agg(retry_at IS NULL), '{}') AS failed,
       (SELECT count(*) FROM removed) AS removed_workers,
       (SELECT extract(epoch FROM min(heartbeat_at) + $1::interval - now())::float8
        FROM awa.workers WHERE locked_on IS NOT NULL) AS next_s
FROM rescued
