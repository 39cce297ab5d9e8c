-- running → retryable or failed (or cancelled, if requested), for jobs with a stale heartbeat: their worker is presumed
-- dead. Disjoint from every other rescue, and never touches jobs of live workers. Bounded.
-- $1 the default staleness · $2 at most this many jobs
WITH stale AS MATERIALIZED (
    SELECT r.id, r.lease
    FROM awa.running r LEFT JOIN awa.queues q ON q.name = r.queue
    WHERE r.attempted_at < now() - least($1::interval, (SELECT min(staleness) FROM awa.queues))
      AND r.heartbeat_at < now() - coalesce(q.staleness, $1::interval)
    ORDER BY r.attempted_at
    LIMIT $2
    FOR UPDATE OF r SKIP LOCKED
)
SELECT rescued.*, pg_notify('awa', 'lost:' || rescued.id || ':' || rescued.lease)
FROM (SELECT array_agg(id) AS ids, array_agg(lease) AS leases, count(*)::int AS n FROM stale) AS s
CROSS JOIN LATERAL awa.fail_attempts(
    s.ids, s.leases, array_fill('heartbeat stale: worker presumed dead'::text, ARRAY[s.n]),
    array_fill(NULL::interval, ARRAY[s.n]), true) AS rescued
