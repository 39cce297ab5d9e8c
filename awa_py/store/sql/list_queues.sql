-- Every queue that has a row or jobs, with its settings and its number of jobs in each state.
-- $1 name, NULL: all · $2 staleness: workers that were silent for longer are dead
WITH counted AS (
    SELECT name, jsonb_object_agg(state, jobs) AS counts, min(oldest) FILTER (WHERE state = 'available') AS oldest
    FROM (SELECT queue AS name, state, count(*) AS jobs, min(run_at) AS oldest
          FROM awa.jobs
          WHERE $1::text IS NULL OR queue = $1
          GROUP BY queue, state) AS states
    GROUP BY name
),
-- There can be thousands of queues. Joins of these row sets would be nested loops.
serving AS MATERIALIZED (
    SELECT jsonb_object_agg(name, workers) AS by_queue
    FROM (SELECT unnest(queues) AS name, count(*) AS workers
          FROM awa.workers WHERE heartbeat_at > now() - $2::interval GROUP BY 1) AS queues
),
named AS (
    SELECT DISTINCT ON (name) name, counts, oldest
    FROM (SELECT * FROM counted
          UNION ALL SELECT name, NULL, NULL FROM awa.queues WHERE $1::text IS NULL OR name = $1) AS found
    ORDER BY name, counts IS NULL
)
SELECT named.name, coalesce(q.paused AND q.paused_until > now() IS NOT FALSE, false) AS paused, q.paused_until,
       coalesce(q.backoff_enabled, true) AS backoff_enabled, q.backoff_base, q.backoff_max, q.completed_retention,
       q.failed_retention, q.timeout, q.staleness, q.max_workers, q.rate_jobs, q.rate_period, q.rate_tokens,
       q.rate_refilled_at, q.aging, coalesce(q.fair, false) AS fair,
       coalesce(q.durable_claims, false) AS durable_claims,
       coalesce(q.throttled_until > now(), false) AS throttled, q.throttled_until, q.throttled_at, q.throttle_reason,
       {throttles} AS throttles, q.created_at, q.updated_at,
       coalesce(named.counts, '{}')::text AS counts,
       extract(epoch FROM now() - awa.readable_time(named.oldest))::float8 AS oldest_available_s,
       coalesce(((SELECT by_queue FROM serving) ->> named.name)::int, 0) AS workers
FROM named LEFT JOIN LATERAL (SELECT * FROM awa.queues WHERE queues.name = named.name OFFSET 0) AS q ON true
ORDER BY named.name
