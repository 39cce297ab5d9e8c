-- running → retryable or failed, for jobs of workers that are gone: silent, and the session that held their lock has ended.
-- A frozen or cut-off worker keeps its session; after a restart of the server, nobody is gone who was not seen since.
-- Takes workers out of the registry that have no job left.
-- $1 for how long a worker has been silent, and the leader has led · $2 how many jobs at the most
-- Answers a row a job; and one, without a job, that says how many workers it took out, and in how many seconds the next
-- one will have been silent for long enough. Running jobs are looked at only where somebody is gone.
WITH gone AS MATERIALIZED (
    SELECT w.id
    FROM awa.workers w
    WHERE w.heartbeat_at < now() - $1::interval
      AND w.locked_on = pg_postmaster_start_time()
      AND (SELECT elected_at FROM awa.leader) < now() - $1::interval
      AND NOT EXISTS (SELECT FROM pg_locks
                      WHERE locktype = 'advisory' AND objsubid = 2
                        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
                        AND classid = hashtext('awa' || ':workers')::oid AND objid = hashtext(w.id::text)::oid)
    FOR UPDATE OF w SKIP LOCKED  -- one that comes back in this moment has to wait, and learns what it lost
),
lost AS MATERIALIZED (
    SELECT r.id, r.lease
    FROM awa.running r
    WHERE EXISTS (SELECT FROM gone) AND r.worker_id = ANY (ARRAY(SELECT id FROM gone))
    ORDER BY r.attempted_at
    LIMIT $2
    FOR UPDATE OF r SKIP LOCKED
),
rescued AS MATERIALIZED (
    SELECT rescued.*, pg_notify('awa', 'lost:' || rescued.id || ':' || rescued.lease)
    FROM (SELECT array_agg(id) AS ids, array_agg(lease) AS leases, count(*)::int AS n FROM lost) AS l
    CROSS JOIN LATERAL awa.fail_attempts(
        l.ids, l.leases, array_fill('worker gone: its session ended'::text, ARRAY[l.n]),
        array_fill(NULL::interval, ARRAY[l.n]), true) AS rescued
),
removed AS (
    DELETE FROM awa.workers w
    USING gone
    WHERE w.id = gone.id
      AND w.id <> ALL (ARRAY(SELECT worker_id FROM awa.running WHERE worker_id = ANY (ARRAY(SELECT id FROM gone))))
    RETURNING 1
)
SELECT id, queue, kind, attempt, retry_at, NULL::bigint AS removed, NULL::float8 AS next_s FROM rescued
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, (SELECT count(*) FROM removed),
       (SELECT extract(epoch FROM min(heartbeat_at) + $1::interval - now())::float8
        FROM awa.workers WHERE locked_on IS NOT NULL)
