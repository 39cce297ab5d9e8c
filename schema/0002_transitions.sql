-- The transitions that more than one statement needs: enqueue, and the end of a failed attempt.

-- The error list with one more entry; the last 32 are kept.
CREATE FUNCTION awa.with_error(errors jsonb, attempt int, error text) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN jsonb_array_length(coalesce(errors, '[]')) >= 32 THEN errors - 0
                ELSE coalesce(errors, '[]') END
           || jsonb_build_object('attempt', attempt, 'at', now(), 'error', error)
$$;

-- Takes the unique key for `new_id`, or names the job that holds it. Whoever comes second waits here until the
-- first commits or rolls back; the second statement then sees what the first one did.
CREATE FUNCTION awa.hold_unique_key(wanted text, new_id bigint, period interval, held_in text[])
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    holder awa.unique_keys;
BEGIN
    INSERT INTO awa.unique_keys (key, job_id, expires_at, states)
    VALUES (wanted, new_id, now() + period, held_in)
    ON CONFLICT (key) DO UPDATE SET key = excluded.key WHERE false;  -- locks the row, and changes nothing
    SELECT * INTO holder FROM awa.unique_keys WHERE key = wanted;
    IF holder.job_id <> new_id THEN
        IF holder.expires_at > now() IS NOT FALSE
           AND EXISTS (SELECT FROM awa.jobs WHERE id = holder.job_id AND state = ANY (holder.states)) THEN
            RETURN holder.job_id;
        END IF;
        UPDATE awa.unique_keys SET job_id = new_id, expires_at = now() + period, states = held_in
        WHERE key = wanted;
    END IF;
    RETURN new_id;
END $$;

-- Enqueues a JSON array of objects, each with `kind` and what it wants to set of: args, queue, priority, run_at,
-- delay, max_attempts, timeout, deadline, tags, metadata, parent_id, unique_key, unique_for, unique_states.
-- Answers a row an object, in its order (n); is_new is false where a unique key was held, and id names the holder.
CREATE FUNCTION awa.enqueue_many(jobs jsonb)
RETURNS TABLE (n bigint, id bigint, is_new boolean, state text, run_at timestamptz, created_at timestamptz)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH input AS MATERIALIZED (
        SELECT j.n, nextval('awa.job_id') AS new_id, j.kind, coalesce(j.queue, 'default') AS queue,
               coalesce(j.priority, 2::smallint) AS priority, coalesce(j.args, '{}') AS args,
               coalesce(j.run_at, now() + coalesce(j.delay, '0')) AS run_at,
               coalesce(j.max_attempts, 25::smallint) AS max_attempts, j.timeout, j.deadline, j.tags, j.metadata,
               j.parent_id, j.unique_key, j.unique_for,
               coalesce(j.unique_states, '{scheduled,available,running,retryable,waiting}') AS unique_states
        FROM ROWS FROM (jsonb_to_recordset(jobs) AS (
                 kind text, queue text, priority smallint, args jsonb, run_at timestamptz, delay interval,
                 max_attempts smallint, timeout interval, deadline timestamptz, tags text[], metadata jsonb,
                 parent_id bigint, unique_key text, unique_for interval, unique_states text[]))
             WITH ORDINALITY AS j(kind, queue, priority, args, run_at, delay, max_attempts, timeout, deadline,
                                  tags, metadata, parent_id, unique_key, unique_for, unique_states, n)
    ),
    -- Keys are taken in their order, so that two callers with the same keys cannot deadlock; and each once.
    keyed AS MATERIALIZED (
        SELECT sorted.unique_key,
               awa.hold_unique_key(sorted.unique_key, sorted.new_id, sorted.unique_for, sorted.unique_states) AS holder
        FROM (SELECT DISTINCT ON (unique_key) unique_key, new_id, unique_for, unique_states
              FROM input WHERE unique_key IS NOT NULL ORDER BY unique_key, n OFFSET 0) AS sorted
    ),
    judged AS MATERIALIZED (
        SELECT input.*, coalesce(keyed.holder, input.new_id) AS holder
        FROM input LEFT JOIN keyed USING (unique_key)
    ),
    now_ready AS (
        INSERT INTO awa.ready (id, kind, queue, priority, args, run_at, max_attempts, timeout, expires_at, tags,
                               metadata, parent_id, unique_key)
        SELECT new_id, kind, queue, priority, args, run_at, max_attempts, timeout, deadline, tags,
               metadata, parent_id, unique_key
        FROM judged WHERE holder = new_id AND run_at <= now() ORDER BY n
    ),
    for_later AS (
        INSERT INTO awa.scheduled (state, id, kind, queue, priority, args, run_at, max_attempts, timeout, expires_at,
                                   tags, metadata, parent_id, unique_key)
        SELECT 'scheduled', new_id, kind, queue, priority, args, run_at, max_attempts, timeout, deadline,
               tags, metadata, parent_id, unique_key
        FROM judged WHERE holder = new_id AND run_at > now()
    ),
    woken AS MATERIALIZED (
        SELECT awa.wake(array_agg(DISTINCT queue) FILTER (WHERE run_at <= now()),
                        min(run_at) FILTER (WHERE run_at > now()))
        FROM judged WHERE holder = new_id
    )
    SELECT judged.n, holder, holder = new_id,
           CASE WHEN run_at <= now() THEN 'available' ELSE 'scheduled' END, run_at, now()
    FROM judged, woken ORDER BY n;
END $$;

-- Tells workers that these queues have something ready, and the leader of a due time that is close. What lies
-- further away the leader finds by itself.
CREATE FUNCTION awa.wake(ready_queues text[], due timestamptz) RETURNS void LANGUAGE sql AS $$
    SELECT pg_notify('awa', 'ready:' || name) FROM unnest(ready_queues) AS name
    UNION ALL
    SELECT pg_notify('awa', 'due:') WHERE due < now() + interval '10 seconds'
$$;

-- Enqueues one job, in the caller's transaction. Returns its id, or the id of the job that holds its unique key.
CREATE FUNCTION awa.enqueue(
    kind text, args jsonb DEFAULT '{}', queue text DEFAULT NULL, priority int DEFAULT NULL,
    run_at timestamptz DEFAULT NULL, delay interval DEFAULT NULL, max_attempts int DEFAULT NULL,
    timeout interval DEFAULT NULL, deadline timestamptz DEFAULT NULL, tags text[] DEFAULT NULL,
    metadata jsonb DEFAULT NULL, parent_id bigint DEFAULT NULL, unique_key text DEFAULT NULL,
    unique_for interval DEFAULT NULL, unique_states text[] DEFAULT NULL
) RETURNS bigint LANGUAGE sql AS $$
    SELECT id FROM awa.enqueue_many(jsonb_build_array(jsonb_strip_nulls(jsonb_build_object(
        'kind', kind, 'queue', queue, 'priority', priority, 'run_at', run_at, 'delay', delay,
        'max_attempts', max_attempts, 'timeout', timeout, 'deadline', deadline, 'tags', tags,
        'parent_id', parent_id, 'unique_key', unique_key, 'unique_for', unique_for, 'unique_states', unique_states))
        || jsonb_build_object('args', args, 'metadata', metadata)))
$$;

-- Ends attempts that failed: back to scheduled by the queue's backoff curve, or by `delays` where one is given;
-- to dead where the attempts are used up, where the job's deadline comes first, or where somebody asked to cancel
-- it. The lease guards each row.
CREATE FUNCTION awa.fail_attempts(ids bigint[], leases int[], error_texts text[], delays interval[], crashed boolean)
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
        RETURNING id, run_at
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
    woken AS MATERIALIZED (SELECT awa.wake(NULL, min(run_at)) FROM retried)
    SELECT fated.id, fated.lease, fated.queue, fated.kind, fated.attempt, fated.max_attempts, retried.run_at
    FROM fated CROSS JOIN woken LEFT JOIN retried USING (id);
END $$;
