-- The minutes to roll up: from a few minutes before the last one that was rolled up to the current one.
-- $1 how many minutes to roll up again · $2 how far to go back at most · $3 the last minute that was rolled up; NULL:
-- read it
SELECT greatest(date_trunc('minute', now() - $2::interval),
                least(coalesce($3, (SELECT max(at) FROM awa.metric_buckets), '-infinity'), this)
                - ($1::int - 1) * interval '1 minute') AS first,
       this AS last
FROM (SELECT date_trunc('minute', now()) AS this) AS clock
