-- Return whether a queue needs claim_limited_jobs: it has limits, or jobs with a key.
-- $1 queue · $2 priorities · $3 positions: one for each priority; the scan starts behind it
SELECT EXISTS (SELECT FROM awa.queues WHERE name = $1 AND (max_workers IS NOT NULL OR rate_jobs IS NOT NULL))
    OR EXISTS (SELECT
               FROM unnest($2::smallint[], $3::bigint[]) AS level(priority, after_position)
               CROSS JOIN LATERAL (SELECT FROM awa.ready
                                   WHERE queue = $1 AND priority = level.priority AND pos > level.after_position
                                     AND concurrency_key IS NOT NULL
                                   ORDER BY pos LIMIT 1) AS head)
