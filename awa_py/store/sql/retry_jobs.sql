-- failed, cancelled, completed → available, counters fresh; scheduled and retryable → available now, counters kept.
-- An absolute deadline is lifted where it has passed: the operator knows better.
-- $1 ids · $2 states · $3 leases that they must have (both NULL: any) · $4 whether to note what their rows forget with it
WITH wanted AS (SELECT * FROM unnest($1::bigint[], $2::text[], $3::int[]) AS w(job_id, in_state, with_lease)),
ended AS (
    DELETE FROM awa.dead USING wanted
    WHERE id = job_id AND (in_state IS NULL OR (in_state = state AND lease = with_lease))
    RETURNING {carried}, errors, lease, attempt, state, attempted_at, finalized_at, worker_id
),
done AS (
    DELETE FROM awa.completed USING wanted
    WHERE id = job_id AND (in_state IS NULL OR (in_state = 'completed' AND lease = with_lease))
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
