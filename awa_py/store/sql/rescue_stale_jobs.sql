-- running → retryable or failed (or cancelled, if requested), for jobs with a stale heartbeat: their worker is presumed
-- dead. Disjoint from every other rescue, and never touches jobs of live workers. Bounded.
-- $1 the default staleness · $2 at most this many jobs
-- $3 how long the leader has watched, NULL if it is not the leader who asks · $4 when it looked before
-- Returns one row: the rescued jobs as arrays, the time of this look, and how often to look: three times within the
-- smallest staleness in use.
--
-- Silence counts only if the leader watched it. A worker could not renew its leases while the server was away, or hung.
-- So the leader must have watched for the whole staleness, and must have found the job silent, for half of it, when it
-- looked before. That was at least half an interval ago, so that workers had time to renew leases in between.
WITH looks AS MATERIALIZED (
    SELECT least($1::interval, (SELECT min(staleness) FROM awa.queues)) / 3 AS interval
),
stale AS MATERIALIZED (
    SELECT r.id, r.lease
    FROM awa.running r LEFT JOIN awa.queues q ON q.name = r.queue
    WHERE r.attempted_at < now() - 3 * (SELECT interval FROM looks)
      AND r.heartbeat_at < now() - coalesce(q.staleness, $1::interval)
      AND ($3::interval IS NULL
           OR $3 >= coalesce(q.staleness, $1::interval)
              AND $4::timestamptz <= now() - (SELECT interval FROM looks) / 2
              AND r.heartbeat_at < $4 - coalesce(q.staleness, $1::interval) / 2)
    ORDER BY r.attempted_at
    LIMIT $2
    FOR UPDATE OF r SKIP LOCKED
),
rescued AS MATERIALIZED (
    SELECT rescued.*, pg_notify('awa', 'lost:' || rescued.id || ':' || rescued.lease)
    FROM (SELECT array_agg(id) AS ids, array_agg(lease) AS leases, count(*)::int AS n FROM stale) AS s
    CROSS JOIN LATERAL awa.fail_attempts(
        s.ids, s.leases, array_fill('heartbeat stale: worker presumed dead'::text, ARRAY[s.n]),
        array_fill(NULL::interval, ARRAY[s.n]), true) AS rescued
)
SELECT coalesce(array_agg(id), '{}') AS ids, coalesce(array_agg(queue), '{}') AS queues,
       coalesce(array_agg(kind), '{}') AS kinds, coalesce(array_agg(attempt), '{}') AS attempts,
       coalesce(array_agg(retry_at IS NULL), '{}') AS failed, now() AS looked_at,
       (SELECT interval FROM looks) AS look_interval
FROM rescued
