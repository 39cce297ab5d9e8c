-- scheduled, retryable → available, for what is due; and the workers are told. Bounded, earliest first.
-- $1 how many at the most
-- Answers how many, and how many seconds until the next one is due (NULL: none).
WITH gone AS (
    DELETE FROM awa.scheduled
    WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM awa.scheduled
        WHERE run_at <= now() AND state <> 'waiting'
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
woken AS MATERIALIZED (SELECT awa.wake(array_agg(DISTINCT queue), NULL), count(*) AS promoted FROM gone)
SELECT promoted,
       (SELECT extract(epoch FROM min(run_at) - clock_timestamp())::float8
        FROM awa.scheduled WHERE run_at > now() AND state <> 'waiting') AS next_s
FROM woken
