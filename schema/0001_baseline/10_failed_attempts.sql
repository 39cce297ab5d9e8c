-- End failed attempts.

-- Return the list of errors with one more entry. It keeps the last 32. What is not a list is replaced.
-- `worker` ran the attempt; NULL: no attempt ran. `details` has more fields of the entry, e.g. the traceback.
CREATE FUNCTION awa.append_error(
    errors jsonb, attempt int, error text, worker uuid DEFAULT NULL, details jsonb DEFAULT NULL
) RETURNS jsonb LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT CASE WHEN jsonb_typeof(errors) IS DISTINCT FROM 'array' THEN '[]'
                WHEN jsonb_array_length(errors) >= 32 THEN errors - 0
                ELSE errors END
           || (coalesce(details, '{}')
               || jsonb_build_object('attempt', attempt, 'at', now(), 'error', error)
               || jsonb_strip_nulls(jsonb_build_object(
                   'worker_id', worker,
                   'worker', (SELECT coalesce(label, hostname || ':' || pid) FROM awa.workers WHERE id = worker))));
END;

-- End failed attempts: running → retryable, after the given delay or by the queue's backoff; or → failed, if no attempt
-- is left or the job's deadline comes first; or → cancelled, if that was requested. The lease guards each row, and so
-- does `holder`, the worker that ran the attempts. It is NULL for a rescue: the job then waits at least a second.
-- The backoff is base · 2^(attempt - 1), at most its maximum, times a random factor from 1 to 1.2: jobs that failed
-- together must not come back together. `details` has further fields of each error as JSON objects.
CREATE FUNCTION awa.fail_attempts(
    ids bigint[], leases int[], error_texts text[], delays interval[], crashed boolean, holder uuid DEFAULT NULL,
    details text[] DEFAULT NULL
) RETURNS TABLE (id bigint, lease int, queue text, kind text, attempt smallint, max_attempts smallint,
                 retry_at timestamptz)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    -- Looked up by id: a join with the arrays becomes a scan of the whole table for each element, if the last vacuum
    -- saw an empty table.
    lease_of jsonb := jsonb_object(ids::text[], leases::text[]);
    error_of jsonb := jsonb_object(ids::text[], error_texts);
    delay_of jsonb := jsonb_object(ids::text[], delays::text[]);
    details_of jsonb := jsonb_object(ids::text[], details);
BEGIN
    RETURN QUERY
    WITH ended AS (
        DELETE FROM awa.running
        WHERE id = ANY (ids) AND lease = (lease_of ->> id::text)::int AND (holder IS NULL OR worker_id = holder)
        RETURNING *, error_of ->> id::text AS error, (delay_of ->> id::text)::interval AS delay,
                  CASE WHEN holder IS NULL THEN '{"rescued": true}'
                       ELSE (details_of ->> id::text)::jsonb END AS details
    ),
    timed AS MATERIALIZED (
        SELECT ended.*, now() + CASE
                   WHEN ended.delay IS NOT NULL THEN ended.delay
                   -- In seconds: an interval times 2^30 can overflow.
                   ELSE make_interval(secs => (1 + 0.2 * random()) * greatest(
                       CASE WHEN q.backoff_enabled IS FALSE THEN 0
                            ELSE least(
                                extract(epoch FROM coalesce(q.backoff_base, '1 second'))::float8
                                * 2 ^ least(ended.attempt - 1, 30),
                                extract(epoch FROM coalesce(q.backoff_max, '1 hour'))::float8) END,
                       CASE WHEN holder IS NULL THEN 1 ELSE 0 END))
               END AS next_run
        FROM ended LEFT JOIN awa.queues q ON q.name = ended.queue
    ),
    -- An attempt that recorded a checkpoint does not count: only attempts in a row that recorded nothing use up max_attempts.
    counted AS MATERIALIZED (
        SELECT *, CASE WHEN EXISTS (SELECT FROM awa.checkpoints
                                    WHERE job_id = timed.id AND checkpoints.lease = timed.lease OFFSET 0)
                       THEN 0 ELSE attempt END AS used_attempts
        FROM timed
    ),
    decided AS MATERIALIZED (
        SELECT *, used_attempts < max_attempts AND expires_at > next_run IS NOT FALSE
                  AND cancel_requested_at IS NULL AS retry
        FROM counted
    ),
    retried AS (
        INSERT INTO awa.scheduled (state, {carried without rescues}, rescues, run_at, errors, attempt, lease)
        SELECT 'retryable', {carried without rescues}, least(rescues + crashed::int, 32766), next_run,
               awa.append_error(errors, attempt, error, worker_id, details), used_attempts, lease
        FROM decided WHERE retry
    ),
    discarded AS (
        INSERT INTO awa.dead (state, {carried without rescues}, rescues, run_at, errors, attempt, lease, worker_id,
                              attempted_at)
        SELECT CASE WHEN cancel_requested_at IS NULL THEN 'failed' ELSE 'cancelled' END,
               {carried without rescues}, least(rescues + crashed::int, 32766), run_at,
               awa.append_error(errors, attempt,
                                CASE WHEN cancel_requested_at IS NULL THEN error ELSE 'cancelled by user' END,
                                worker_id, CASE WHEN cancel_requested_at IS NULL THEN details END),
               attempt, lease, worker_id, attempted_at
        FROM decided WHERE NOT retry
    ),
    notified AS MATERIALIZED (SELECT awa.wake(NULL, min(next_run)) FROM decided WHERE retry)
    SELECT decided.id, decided.lease, decided.queue, decided.kind, decided.attempt, decided.max_attempts,
           CASE WHEN decided.retry THEN decided.next_run END
    FROM decided CROSS JOIN notified;
END $$;
