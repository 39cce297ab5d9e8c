-- scheduled, retryable, waiting → available, for due jobs. Notify the workers. Bounded, earliest first.
-- $1 at most this many jobs · $2 the due time at which to start (NULL: at the earliest)
-- Returns the number of jobs, the seconds until the next one is due (NULL: there is none), and the due time before
-- which no job is left. That is at least a second ago: a job of the last second may have been due before its enqueue
-- committed.
WITH deleted AS (
    DELETE FROM awa.scheduled
    WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM awa.scheduled
        WHERE run_at >= coalesce($2::timestamptz, '-infinity') AND run_at <= now()
        ORDER BY run_at
        LIMIT $1
        FOR UPDATE SKIP LOCKED
    ))
    RETURNING *
),
inserted AS (
    INSERT INTO awa.ready ({carried}, run_at, errors, attempt, lease)
    SELECT {carried}, run_at, errors, attempt, lease
    FROM deleted
    ORDER BY run_at, id
),
notified AS MATERIALIZED (
    SELECT awa.wake(array_agg(DISTINCT queue), NULL), count(*) AS promoted, max(run_at) AS latest FROM deleted
)
SELECT promoted,
       (SELECT extract(epoch FROM min(run_at) - clock_timestamp())::float8
        FROM awa.scheduled WHERE run_at > now()) AS next_s,
       least(CASE WHEN promoted = $1 THEN latest END, now() - interval '1 second') AS settled_until
FROM notified
