-- Every queue that has a row or jobs, with its settings and its number of jobs in each state.
-- $1 name, NULL: all · $2 staleness: workers that were silent for longer are dead
WITH counted AS (
    SELECT queue AS name, state, count(*) AS jobs, min(run_at) AS oldest
    FROM awa.jobs
    WHERE $1::text IS NULL OR queue = $1
    GROUP BY queue, state
),
named AS (SELECT name FROM awa.queues WHERE $1::text IS NULL OR name = $1 UNION SELECT name FROM counted)
SELECT named.name, coalesce(q.paused AND q.paused_until > now() IS NOT FALSE, false) AS paused, q.paused_until,
       coalesce(q.backoff_enabled, true) AS backoff_enabled, q.backoff_base, q.backoff_max, q.completed_retention,
       q.failed_retention, q.timeout, q.staleness, q.max_workers, q.rate_jobs, q.rate_period, q.rate_tokens,
       q.rate_refilled_at, q.aging, coalesce(q.fair, false) AS fair,
       coalesce(q.throttled_until > now(), false) AS throttled, q.throttled_until, q.throttled_at, q.throttle_reason,
       {throttles} AS throttles, q.created_at, q.updated_at,
       coalesce((SELECT jsonb_object_agg(state, jobs) FROM counted WHERE counted.name = named.name), '{}')::text AS counts,
       (SELECT extract(epoch FROM now() - oldest)::float8 FROM counted
        WHERE counted.name = named.name AND state = 'available') AS oldest_available_s,
       (SELECT count(*) FROM awa.workers w
        WHERE w.heartbeat_at > now() - $2::interval AND named.name = ANY (w.queues)) AS workers
FROM named LEFT JOIN awa.queues q USING (name)
ORDER BY named.name
