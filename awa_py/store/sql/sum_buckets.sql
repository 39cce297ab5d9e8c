-- What ended since a minute, by queue and kind: in all, by the cells of waits and of runs, and in slots of some minutes.
-- $1 the first minute · $2 queue, $3 kind; NULL: any · $4 how many minutes a slot has
-- Answers, for each queue and kind, a row of its counts; and rows of what there is in each cell and slot, as `how` says.
WITH chosen AS MATERIALIZED (
    SELECT *, completed + failed + cancelled AS jobs
    FROM awa.metric_buckets
    WHERE at >= $1::timestamptz AND ($2::text IS NULL OR queue = $2) AND ($3::text IS NULL OR kind = $3)
)
SELECT queue, kind, 'counts' AS how, NULL::int AS place, sum(jobs) AS jobs, sum(completed) AS completed,
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
ORDER BY queue, kind, how
