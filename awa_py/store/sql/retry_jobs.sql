-- failed, cancelled, completed → available, counters fresh; scheduled and retryable → available now, counters kept.
-- An absolute deadline is lifted where it has passed: the operator knows better.
-- An ended job takes its unique key again; where another holds it, it is left alone. Of several with the same key one is
-- retried: that which holds it still, else the oldest.
-- $1 ids · $2 states · $3 leases that they must have (both NULL: any) · $4 whether to note what their rows forget with it
WITH wanted AS (SELECT * FROM unnest($1::bigint[], $2::text[], $3::int[]) AS w(job_id, in_state, with_lease)),
-- Looked at with the first job that has a key, else never. Keys are taken in their order, as an enqueue takes them: two
-- callers cannot deadlock. A job that has ended keeps no other from its key: whoever comes last has it.
keyed AS MATERIALIZED (
    SELECT id, unique_key, awa.reacquire_unique_key(unique_key, id) AS holder
    FROM (SELECT id, unique_key
          FROM (SELECT id, unique_key, state, lease FROM awa.dead
                UNION ALL SELECT id, unique_key, 'completed', lease FROM awa.completed) AS finished
          JOIN wanted ON id = job_id
          WHERE unique_key IS NOT NULL AND (in_state IS NULL OR (in_state = state AND lease = with_lease))
          ORDER BY unique_key, id DESC OFFSET 0) AS sorted
),
holding AS MATERIALIZED (SELECT min(id) AS holder FROM keyed WHERE holder = id GROUP BY unique_key),
ended AS (
    DELETE FROM awa.dead USING wanted
    WHERE id = job_id AND (in_state IS NULL OR (in_state = state AND lease = with_lease))
      AND (unique_key IS NULL OR id IN (SELECT holder FROM holding))
    RETURNING {carried}, errors, lease, attempt, state, attempted_at, finalized_at, worker_id
),
done AS (
    DELETE FROM awa.completed USING wanted
    WHERE id = job_id AND (in_state IS NULL OR (in_state = 'completed' AND lease = with_lease))
      AND (unique_key IS NULL OR id IN (SELECT holder FROM holding))
    RETURNING {carried}, errors, lease, attempt, 'completed' AS state, attempted_at, finalized_at, worker_id
),
over AS (SELECT * FROM ended UNION ALL SELECT * FROM done),
noted AS (
    INSERT INTO awa.events (job_id, at, event, lease, attempt, began_at, worker_id, detail)
    SELECT over.id, happened.*
    FROM over CROSS JOIN LATERAL (VALUES
        (finalized_at, state, lease, attempt, attempted_at, worker_id, NULL),
        (now(), 'requeued', lease, 0, NULL, NULL, 'by hand')) AS happened
    WHERE $4
),
later AS (
    DELETE FROM awa.scheduled USING wanted
    WHERE id = job_id AND state <> 'waiting' AND (in_state IS NULL OR (in_state = state AND lease = with_lease))
    RETURNING {carried}, errors, lease, attempt
),
again AS (
    SELECT {carried}, errors, lease, 0::smallint AS attempt, true AS fresh FROM over
    UNION ALL SELECT *, false FROM later
),
put AS (
    INSERT INTO awa.ready (id, created_at, expires_at, timeout, parent_id, priority, max_attempts, rescues, kind, queue,
                           args, metadata, tags, unique_key, concurrency_key, concurrency_limit, ordered, errors, lease,
                           attempt)
    SELECT id, created_at, CASE WHEN expires_at > now() THEN expires_at END, timeout, parent_id, priority, max_attempts,
           CASE WHEN fresh THEN 0 ELSE rescues END, kind, queue, args, metadata, tags, unique_key,
           concurrency_key, concurrency_limit, ordered, errors, lease, attempt
    FROM again
),
woken AS MATERIALIZED (SELECT awa.wake(array_agg(DISTINCT queue), NULL) FROM again)
SELECT again.id FROM again CROSS JOIN woken
