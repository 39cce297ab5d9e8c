-- Change some settings of a queue; the others stay. A new rate starts with one token.
-- $1 name · $2 the settings, a JSON object by column; null restores the default
WITH wanted AS (
    SELECT * FROM jsonb_to_record($2::text::jsonb) AS w(
        backoff_enabled boolean, backoff_base interval, backoff_max interval, completed_retention interval,
        failed_retention interval, timeout interval, staleness interval, max_workers int, rate_jobs int,
        rate_period interval, aging interval, fair boolean, durable_claims boolean)
),
written AS (
    INSERT INTO awa.queues AS old (name, backoff_enabled, backoff_base, backoff_max, completed_retention,
                                   failed_retention, timeout, staleness, max_workers, rate_jobs, rate_period, aging, fair,
                                   durable_claims)
    SELECT $1, coalesce(w.backoff_enabled, true), w.backoff_base, w.backoff_max, w.completed_retention,
           w.failed_retention, w.timeout, w.staleness, w.max_workers, w.rate_jobs, w.rate_period, w.aging,
           coalesce(w.fair, false), coalesce(w.durable_claims, false)
    FROM wanted w
    ON CONFLICT (name) DO UPDATE SET
        backoff_enabled = CASE WHEN $2::text::jsonb ? 'backoff_enabled' THEN excluded.backoff_enabled ELSE old.backoff_enabled END,
        backoff_base = CASE WHEN $2::text::jsonb ? 'backoff_base' THEN excluded.backoff_base ELSE old.backoff_base END,
        backoff_max = CASE WHEN $2::text::jsonb ? 'backoff_max' THEN excluded.backoff_max ELSE old.backoff_max END,
        completed_retention = CASE WHEN $2::text::jsonb ? 'completed_retention' THEN excluded.completed_retention
                                   ELSE old.completed_retention END,
        failed_retention = CASE WHEN $2::text::jsonb ? 'failed_retention' THEN excluded.failed_retention
                                ELSE old.failed_retention END,
        timeout = CASE WHEN $2::text::jsonb ? 'timeout' THEN excluded.timeout ELSE old.timeout END,
        staleness = CASE WHEN $2::text::jsonb ? 'staleness' THEN excluded.staleness ELSE old.staleness END,
        max_workers = CASE WHEN $2::text::jsonb ? 'max_workers' THEN excluded.max_workers ELSE old.max_workers END,
        rate_jobs = CASE WHEN $2::text::jsonb ? 'rate_jobs' THEN excluded.rate_jobs ELSE old.rate_jobs END,
        rate_period = CASE WHEN $2::text::jsonb ? 'rate_jobs' THEN excluded.rate_period ELSE old.rate_period END,
        rate_tokens = CASE WHEN $2::text::jsonb ? 'rate_jobs' THEN 1 ELSE old.rate_tokens END,
        rate_refilled_at = CASE WHEN $2::text::jsonb ? 'rate_jobs' THEN now() ELSE old.rate_refilled_at END,
        aging = CASE WHEN $2::text::jsonb ? 'aging' THEN excluded.aging ELSE old.aging END,
        fair = CASE WHEN $2::text::jsonb ? 'fair' THEN excluded.fair ELSE old.fair END,
        durable_claims = CASE WHEN $2::text::jsonb ? 'durable_claims' THEN excluded.durable_claims
                              ELSE old.durable_claims END,
        updated_at = now()
    RETURNING name
)
SELECT count(pg_notify('awa', 'queues:' || name)), count(pg_notify('awa' || ':leader', 'queues:' || name)) FROM written
