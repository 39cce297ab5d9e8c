-- What ended since a minute, by queue and kind: the counts, the latency buckets of waits and runs, and the number of
-- jobs in slots of some minutes. `part` says which of these a row is: one row of `counts` per queue and kind, and one
-- row per bucket of `waits`, `runs` and `slots`.
-- $1 the first minute · $2 queue, $3 kind; NULL: any · $4 the minutes of a slot
WITH chosen AS MATERIALIZED (
    SELECT *, completed + failed + cancelled AS jobs
    FROM awa.metric_buckets
    WHERE at >= $1::timestamptz AND ($2::text IS NULL OR queue = $2) AND ($3::text IS NULL OR kind = $3)
)
SELECT queue, kind, 'counts' AS part, NULL::int AS bucket, sum(jobs) AS jobs, sum(completed) AS completed,
       sum(failed) AS failed, sum(cancelled) AS cancelled, sum(retried) AS retried
FROM chosen GROUP BY queue, kind
UNION ALL
SELECT queue, kind, 'waits', waits[n][1], sum(waits[n][2]), NULL, NULL, NULL, NULL
FROM chosen CROSS JOIN generate_subscripts(waits, 1) AS n GROUP BY 1, 2, 4
UNION ALL
SELECT queue, kind, 'runs', runs[n][1], sum(runs[n][2]), NULL, NULL, NULL, NULL
FROM chosen CROSS JOIN generate_subscripts(runs, 1) AS n GROUP BY 1, 2, 4
UNION ALL
SELECT queue, kind, 'slots', floor(date_part('epoch', at - $1) / 60 / $4::int)::int, sum(jobs), NULL, NULL, NULL, NULL
FROM chosen GROUP BY 1, 2, 4
ORDER BY queue, kind, part
