-- The end of failed attempts, at a cost that grows with their number and not with its square: it joined what it had
-- retried with what it had judged, row by row.

-- Ends attempts that failed: back to scheduled by the queue's backoff curve, or by `delays` where one is given;
-- to dead where the attempts are used up, where the job's deadline comes first, or where somebody asked to cancel
-- it. The lease guards each row.
CREATE OR REPLACE FUNCTION awa.fail_attempts(ids bigint[], leases int[], error_texts text[], delays interval[], crashed boolean)
RETURNS TABLE (id bigint, lease int, queue text, kind text, attempt smallint, max_attempts smallint,
               retry_at timestamptz)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH ended AS (
        DELETE FROM awa.running r
        USING unnest(ids, leases, error_texts, delays) AS failed(id, lease, error, delay)
        WHERE r.id = failed.id AND r.lease = failed.lease
        RETURNING r.*, failed.error, failed.delay
    ),
    judged AS MATERIALIZED (
        SELECT ended.*, now() + CASE
                   WHEN ended.delay IS NOT NULL THEN ended.delay
                   ELSE greatest(
                       CASE WHEN q.backoff_enabled IS FALSE THEN interval '0'
                            -- In seconds: an interval times 2^30 may be more than an interval can hold.
                            ELSE make_interval(secs => least(
                                extract(epoch FROM coalesce(q.backoff_base, '1 second'))::float8
                                * 2 ^ least(ended.attempt - 1, 30),
                                extract(epoch FROM coalesce(q.backoff_max, '1 hour'))::float8)) END,
                       CASE WHEN crashed THEN interval '1 second' ELSE interval '0' END)
               END AS next_run
        FROM ended LEFT JOIN awa.queues q ON q.name = ended.queue
    ),
    fated AS MATERIALIZED (
        SELECT *, attempt < max_attempts AND expires_at > next_run IS NOT FALSE
                  AND cancel_requested_at IS NULL AS again
        FROM judged
    ),
    retried AS (
        INSERT INTO awa.scheduled (state, id, created_at, run_at, expires_at, timeout, parent_id, lease, priority,
                                   attempt, max_attempts, rescues, kind, queue, args, metadata, tags, unique_key,
                                   errors, progress)
        SELECT 'retryable', id, created_at, next_run, expires_at, timeout, parent_id, lease, priority,
               attempt, max_attempts, rescues + crashed::int, kind, queue, args, metadata, tags, unique_key,
               awa.with_error(errors, attempt, error), progress
        FROM fated WHERE again
    ),
    failed AS (
        INSERT INTO awa.dead (state, id, created_at, run_at, expires_at, timeout, parent_id, lease, priority,
                              attempt, max_attempts, rescues, kind, queue, args, metadata, tags, unique_key,
                              errors, progress, worker_id, attempted_at)
        SELECT CASE WHEN cancel_requested_at IS NULL THEN 'failed' ELSE 'cancelled' END,
               id, created_at, run_at, expires_at, timeout, parent_id, lease, priority,
               attempt, max_attempts, rescues + crashed::int, kind, queue, args, metadata, tags, unique_key,
               awa.with_error(errors, attempt,
                              CASE WHEN cancel_requested_at IS NULL THEN error ELSE 'cancelled by user' END),
               progress, worker_id, attempted_at
        FROM fated WHERE NOT again
    ),
    woken AS MATERIALIZED (SELECT awa.wake(NULL, min(next_run)) FROM fated WHERE again)
    SELECT fated.id, fated.lease, fated.queue, fated.kind, fated.attempt, fated.max_attempts,
           CASE WHEN fated.again THEN fated.next_run END
    FROM fated CROSS JOIN woken;
END $$;
