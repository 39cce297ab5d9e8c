-- Enqueue jobs, in the caller's transaction.

-- Return the value, or refuse it with a sentence. The tables refuse it too, but only name the rule.
CREATE FUNCTION awa.check_duration(name text, value interval) RETURNS interval
LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF awa.is_duration(value) IS NOT TRUE OR (name = 'timeout' AND value = interval '0') THEN
        RAISE check_violation USING MESSAGE = format(
            '%s is %s: it must be %s and at most 365000 days', name, value,
            CASE name WHEN 'timeout' THEN 'longer than 0' ELSE '0 or longer' END);
    END IF;
    RETURN value;
END $$;

CREATE FUNCTION awa.check_time(name text, value timestamptz) RETURNS timestamptz
LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT awa.is_time(value) THEN
        RAISE check_violation USING MESSAGE = format(
            '%s is %s: it must be between the years 1900 and 9000', name, value);
    END IF;
    RETURN value;
END $$;

-- Volatile, so that it is not called before a name is known to be wrong.
CREATE FUNCTION awa.refuse_name(role text) RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE check_violation USING MESSAGE = format(
        'this is not the name of a %s: it must have 1 to 200 characters, and no control characters%s', role,
        CASE role WHEN 'queue' THEN ' or commas' ELSE '' END);
END $$;

-- Enqueue a JSON array of objects. Each has `kind`, and any of: args, queue, priority, run_at, delay, max_attempts,
-- timeout, deadline, tags, metadata, parent_id, unique_key, unique_for, unique_states, concurrency_key,
-- concurrency_limit, ordered, default_queue. A job without a queue goes to the queue of its route, else to
-- `default_queue`. What an object leaves out is as its kind declares it (awa.kinds), except with `as_given`, if the caller
-- knows the declaration. Return one row per object, in their order (n). If another job holds the unique key, is_new is false
-- and id is the holder's. Runs as the schema's owner, so that a producer needs no rights on tables.
CREATE FUNCTION awa.enqueue_many(jobs jsonb, as_given boolean DEFAULT false)
RETURNS TABLE (n bigint, id bigint, is_new boolean, state text, run_at timestamptz, created_at timestamptz, queue text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp {stable plans} AS $$
#variable_conflict use_column
BEGIN
    IF NOT as_given THEN
        jobs := awa.complete_jobs(jobs);
    END IF;
    -- Routes and holders are looked up in JSON objects: a join of two row sets of unknown sizes can become a nested loop.
    RETURN QUERY
    WITH given AS MATERIALIZED (
        SELECT *
        FROM ROWS FROM (jsonb_to_recordset(jobs) AS (
                 kind text, queue text, priority smallint, args jsonb, run_at timestamptz, delay interval,
                 max_attempts smallint, timeout interval, deadline timestamptz, tags text[], metadata jsonb,
                 parent_id bigint, unique_key text COLLATE "C", unique_for interval, unique_states text[],
                 concurrency_key text, concurrency_limit smallint, ordered boolean, default_queue text))
             WITH ORDINALITY
    ),
    routes AS MATERIALIZED (
        SELECT jsonb_object_agg(kind, awa.route(kind)) AS by_kind
        FROM (SELECT DISTINCT kind FROM given WHERE queue IS NULL AND kind IS NOT NULL) AS kinds
    ),
    input AS MATERIALIZED (
        SELECT j.ordinality AS n, nextval('awa.job_id') AS id, now() AS created_at, 0::smallint AS rescues,
               NULL::jsonb AS progress,
               CASE WHEN awa.is_name(j.kind) IS FALSE THEN awa.refuse_name('kind') ELSE j.kind END AS kind,
               CASE WHEN awa.is_queue_name(j.queue) IS FALSE THEN awa.refuse_name('queue')
                    ELSE coalesce(j.queue, (SELECT by_kind FROM routes) ->> j.kind, j.default_queue, 'default') END AS queue,
               coalesce(j.priority, 2::smallint) AS priority, coalesce(j.args, '{}') AS all_args,
               coalesce(awa.check_time('run_at', j.run_at),
                        now() + coalesce(awa.check_duration('delay', j.delay), '0')) AS run_at,
               coalesce(j.max_attempts, 25::smallint) AS max_attempts,
               awa.check_duration('timeout', j.timeout) AS timeout,
               awa.check_time('deadline', j.deadline) AS expires_at, j.tags,
               j.metadata, j.parent_id, j.unique_key,
               awa.check_duration('unique_for', j.unique_for) AS unique_for,
               coalesce(j.unique_states, '{scheduled,available,running,retryable,waiting}') AS unique_states,
               j.concurrency_key,
               CASE WHEN j.concurrency_key IS NOT NULL THEN coalesce(j.concurrency_limit, 1::smallint) END
                   AS concurrency_limit,
               CASE WHEN j.concurrency_key IS NOT NULL THEN coalesce(j.ordered, false) END AS ordered
        FROM given AS j
    ),
    -- If a key occurs twice, its first job acquires it.
    holders AS MATERIALIZED (
        SELECT awa.acquire_unique_keys(wanted) AS by_key
        FROM (SELECT array_agg((unique_key, id, now() + unique_for, unique_states)::awa.unique_keys) AS wanted
              FROM (SELECT DISTINCT ON (unique_key) unique_key, id, unique_for, unique_states
                    FROM input WHERE unique_key IS NOT NULL ORDER BY unique_key, n) AS keyed) AS keys
        WHERE wanted IS NOT NULL
    ),
    decided AS MATERIALIZED (
        SELECT input.*, CASE WHEN pg_column_size(all_args) <= {max inline bytes} THEN all_args END AS args,
               coalesce(((SELECT by_key FROM holders) ->> unique_key)::bigint, id) AS holder
        FROM input
    ),
    payloads AS (
        INSERT INTO awa.payloads (job_id, args) SELECT id, all_args FROM decided WHERE holder = id AND args IS NULL
    ),
    inserted_ready AS (
        INSERT INTO awa.ready ({carried}, run_at)
        SELECT {carried}, run_at FROM decided WHERE holder = id AND run_at <= now() ORDER BY n
    ),
    inserted_scheduled AS (
        INSERT INTO awa.scheduled (state, {carried}, run_at)
        SELECT 'scheduled', {carried}, run_at FROM decided WHERE holder = id AND run_at > now()
    ),
    notified AS MATERIALIZED (
        SELECT awa.wake(array_agg(DISTINCT queue) FILTER (WHERE run_at <= now()),
                        min(run_at) FILTER (WHERE run_at > now()))
        FROM decided WHERE holder = id
    )
    SELECT decided.n, holder, holder = id,
           CASE WHEN run_at <= now() THEN 'available' ELSE 'scheduled' END, run_at, now(), queue
    FROM decided, notified ORDER BY n;
END $$;

REVOKE EXECUTE ON FUNCTION awa.enqueue_many FROM PUBLIC;

-- Enqueue one job. Return its id, or the id of the job that holds its unique key.
CREATE FUNCTION awa.enqueue(
    kind text, args jsonb DEFAULT '{}', queue text DEFAULT NULL, priority int DEFAULT NULL,
    run_at timestamptz DEFAULT NULL, delay interval DEFAULT NULL, max_attempts int DEFAULT NULL,
    timeout interval DEFAULT NULL, deadline timestamptz DEFAULT NULL, tags text[] DEFAULT NULL,
    metadata jsonb DEFAULT NULL, parent_id bigint DEFAULT NULL, unique_key text DEFAULT NULL,
    unique_for interval DEFAULT NULL, unique_states text[] DEFAULT NULL, concurrency_key text DEFAULT NULL,
    concurrency_limit int DEFAULT NULL, ordered boolean DEFAULT NULL
) RETURNS bigint LANGUAGE sql
BEGIN ATOMIC
    SELECT id FROM awa.enqueue_many(jsonb_build_array(jsonb_strip_nulls(jsonb_build_object(
        'kind', kind, 'queue', queue, 'priority', priority, 'run_at', run_at, 'delay', delay,
        'max_attempts', max_attempts, 'timeout', timeout, 'deadline', deadline, 'tags', tags,
        'parent_id', parent_id, 'unique_key', unique_key, 'unique_for', unique_for, 'unique_states', unique_states,
        'concurrency_key', concurrency_key, 'concurrency_limit', concurrency_limit, 'ordered', ordered))
        || jsonb_build_object('args', args, 'metadata', metadata)));
END;
