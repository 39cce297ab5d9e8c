-- The minutes that are to be rolled up: from the last that was, or from some before it, up to this one.
-- $1 how many minutes are rolled again · $2 how far back to go at the most · $3 the last that was; NULL: look
SELECT greatest(date_trunc('minute', now() - $2::interval),
                least(coalesce($3, (SELECT max(at) FROM awa.metric_buckets), '-infinity'), this)
                - ($1::int - 1) * interval '1 minute') AS first,
       this AS last
FROM (SELECT date_trunc('minute', now()) AS this) AS clock
