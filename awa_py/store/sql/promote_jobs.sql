-- scheduled, retryable → available, for what is due; and the workers are told. Bounded, earliest first.
-- $1 how many at the most · $2 the due time from which to look (NULL: from the beginning)
-- Answers how many; how many seconds until the next one is due (NULL: none); and the due time up to which nothing is
-- left: but for the last second, in which a job may have been due before its enqueuer has committed it.
WITH gone AS (
    DELETE FROM awa.scheduled
    WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM awa.scheduled
        WHERE run_at >= coalesce($2::timestamptz, '-infinity') AND run_at <= now() AND state <> 'waiting'
        ORDER BY run_at
        LIMIT $1
        FOR UPDATE SKIP LOCKED
    ))
    RETURNING *
),
put AS (
    INSERT INTO awa.ready ({carried}, run_at, errors, attempt, lease)
    SELECT {carried}, run_at, errors, attempt, lease
    FROM gone
    ORDER BY run_at, id
),
woken AS MATERIALIZED (
    SELECT awa.wake(array_agg(DISTINCT queue), NULL), count(*) AS promoted, max(run_at) AS latest FROM gone
)
SELECT promoted,
       (SELECT extract(epoch FROM min(run_at) - clock_timestamp())::float8
        FROM awa.scheduled WHERE run_at > now() AND state <> 'waiting') AS next_s,
       least(CASE WHEN promoted = $1 THEN latest END, now() - interval '1 second') AS settled_until
FROM woken
