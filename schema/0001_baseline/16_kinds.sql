-- What the code declares about each kind. It applies to every job whose enqueue does not say otherwise, in any language.

CREATE TABLE awa.kinds (
    kind              text        PRIMARY KEY CONSTRAINT kind_is_a_name CHECK (awa.is_name(kind)),
    queue             text        CONSTRAINT queue_is_a_name CHECK (awa.is_queue_name(queue)),  -- NULL: that of a route
    default_queue     text        CONSTRAINT default_queue_is_a_name  -- if it has no queue, and no route matches
                                  CHECK (awa.is_queue_name(default_queue)),
    priority          smallint    NOT NULL CONSTRAINT priority_is_1_to_4 CHECK (priority BETWEEN 1 AND 4),
    max_attempts      smallint    NOT NULL CONSTRAINT max_attempts_is_positive CHECK (max_attempts >= 1),
    timeout           interval    CONSTRAINT timeout_is_positive_and_below_1000_years
                                  CHECK (timeout > '0' AND awa.is_duration(timeout)),
    delay             interval    CONSTRAINT delay_is_below_1000_years CHECK (awa.is_duration(delay)),
    tags              text[]      CONSTRAINT tags_are_names CHECK (awa.are_names(tags)),
    metadata          jsonb       CONSTRAINT metadata_is_an_object CHECK (jsonb_typeof(metadata) = 'object'),
    concurrency_key   text,                             -- a template: {name} stands for the value of an argument
    key_parts         text[],                           -- its literal texts and names, alternating
    concurrency_limit smallint    CONSTRAINT concurrency_limit_is_positive CHECK (concurrency_limit >= 1),
    ordered           boolean,
    unique_by         text[],                           -- the arguments that duplicates share; NULL: all
    unique_key        text,                             -- one key for all jobs, instead of their arguments
    unique_for        interval    CONSTRAINT unique_for_is_below_1000_years CHECK (awa.is_duration(unique_for)),
    unique_states     text[],                           -- NULL: its jobs are not unique
    args_schema       jsonb       CONSTRAINT args_schema_is_an_object CHECK (jsonb_typeof(args_schema) = 'object'),
    version           text        NOT NULL,             -- of the app that declared it
    declared_at       timestamptz NOT NULL DEFAULT now()
                                  CONSTRAINT declared_at_is_between_1900_and_9000 CHECK (awa.is_time(declared_at)),
    replaced_versions text[]      NOT NULL DEFAULT '{}' -- earlier ones: they cannot declare it again
);

-- Return JSON as the text that all equal values share: sorted keys, no spaces, and 1 for 1.0. The same as
-- `canonical_json` in awa_py/model/keys.py.
CREATE FUNCTION awa.canonical_json(value jsonb) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    CASE jsonb_typeof(value)
        WHEN 'object' THEN
            RETURN (SELECT '{' || coalesce(string_agg(to_json(member.key) || ':' || awa.canonical_json(member.value), ','
                                                      ORDER BY member.key COLLATE "C"), '') || '}'
                    FROM jsonb_each(value) AS member);
        WHEN 'array' THEN
            RETURN (SELECT '[' || coalesce(string_agg(awa.canonical_json(item.value), ',' ORDER BY item.ordinality), '') || ']'
                    FROM jsonb_array_elements(value) WITH ORDINALITY AS item);
        WHEN 'number' THEN
            RETURN trim_scale(value::numeric)::text;
        ELSE
            RETURN value::text;
    END CASE;
END $$;

-- Raise an error if the arguments do not fit the kind's JSON Schema: a missing name, an unknown name, or another type.
-- The worker checks what is inside of them.
CREATE FUNCTION awa.check_args(kind text, args jsonb, args_schema jsonb) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    argument record;
    expected jsonb;
    found_type text;
BEGIN
    FOR argument IN SELECT name FROM jsonb_array_elements_text(args_schema -> 'required') AS name WHERE NOT args ? name LOOP
        RAISE check_violation USING MESSAGE = format('%s: missing argument "%s"', kind, argument.name);
    END LOOP;
    FOR argument IN SELECT key AS name, value FROM jsonb_each(args) LOOP
        expected := coalesce(args_schema -> 'properties' -> argument.name, args_schema -> 'additionalProperties');
        IF expected = 'false' THEN
            RAISE check_violation USING MESSAGE = format('%s: unexpected argument "%s"', kind, left(argument.name, 200));
        END IF;
        expected := expected -> 'type';  -- a name, a list of names, or NULL: any type
        found_type := jsonb_typeof(argument.value);
        IF NOT coalesce(expected ? found_type, true)
           AND NOT (found_type = 'number' AND scale(argument.value::numeric) = 0 AND expected ? 'integer') THEN
            RAISE check_violation USING MESSAGE = format(
                '%s: argument "%s" must be %s, not %s', kind, argument.name,
                translate(expected::text, '[]"', ''), found_type);
        END IF;
    END LOOP;
END $$;

-- Return a job for awa.enqueue_many with the declared values where the caller is silent, or raise an error if its
-- arguments do not fit. Its keys are the same as those that Python computes.
CREATE FUNCTION awa.complete_job(job jsonb, declared awa.kinds) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    given    CONSTANT jsonb := (SELECT coalesce(jsonb_object_agg(key, value), '{}') FROM jsonb_each(job)
                                WHERE value <> 'null');
    args     CONSTANT jsonb := coalesce(given -> 'args', '{}');
    complete jsonb := jsonb_strip_nulls(jsonb_build_object(
        'queue', declared.queue, 'default_queue', declared.default_queue, 'priority', declared.priority,
        'max_attempts', declared.max_attempts, 'timeout', declared.timeout, 'tags', declared.tags,
        'concurrency_limit', declared.concurrency_limit, 'ordered', declared.ordered));
    missing  text;
BEGIN
    IF jsonb_typeof(args) <> 'object' THEN
        RETURN job;  -- awa.enqueue_many refuses it
    END IF;
    PERFORM awa.check_args(declared.kind, args, declared.args_schema);
    IF declared.delay IS NOT NULL AND NOT given ?| '{run_at,delay}' THEN
        complete := complete || jsonb_build_object('delay', declared.delay);
    END IF;
    IF declared.key_parts IS NOT NULL AND NOT given ? 'concurrency_key' THEN
        SELECT part INTO missing FROM unnest(declared.key_parts) WITH ORDINALITY AS part (part, n)
        WHERE n % 2 = 0 AND NOT args ? part ORDER BY n LIMIT 1;
        IF FOUND THEN
            RAISE check_violation USING MESSAGE = format('%s: concurrency_key "%s" names "%s", which the job does not have',
                                                         declared.kind, declared.concurrency_key, missing);
        END IF;
        complete := complete || jsonb_build_object('concurrency_key', (
            SELECT string_agg(CASE WHEN n % 2 = 1 THEN part
                                   WHEN jsonb_typeof(args -> part) = 'string' THEN args ->> part
                                   ELSE awa.canonical_json(args -> part) END, '' ORDER BY n)
            FROM unnest(declared.key_parts) WITH ORDINALITY AS part (part, n)));
    END IF;
    IF declared.unique_states IS NOT NULL AND NOT given ? 'unique_key' THEN
        SELECT name INTO missing FROM unnest(declared.unique_by) AS name
        WHERE NOT args ? name AND NOT coalesce(declared.args_schema -> 'properties' ? name, false) LIMIT 1;
        IF FOUND THEN
            RAISE check_violation USING MESSAGE = format('%s: unique by names "%s", which the job does not have',
                                                         declared.kind, missing);
        END IF;
        complete := complete || jsonb_strip_nulls(jsonb_build_object(
            'unique_for', declared.unique_for, 'unique_states', declared.unique_states,
            'unique_key', coalesce(declared.unique_key, declared.kind || ':' || left(encode(sha256(convert_to(
                awa.canonical_json(CASE WHEN declared.unique_by IS NULL THEN args ELSE (
                    SELECT coalesce(jsonb_object_agg(name, coalesce(args -> name, 'null')), '{}')
                    FROM unnest(declared.unique_by) AS name) END), 'UTF8')), 'hex'), 32))));
    END IF;
    IF declared.metadata IS NOT NULL AND jsonb_typeof(coalesce(given -> 'metadata', '{}')) = 'object' THEN
        RETURN complete || given
               || jsonb_build_object('metadata', declared.metadata || coalesce(given -> 'metadata', '{}'));
    END IF;
    RETURN complete || given;
END $$;

-- Return the jobs of awa.enqueue_many with the declared values of their kinds. A job with `as_given` is left as it is:
-- its caller knows the declaration. Runs as the schema's owner: a producer may not read awa.kinds.
CREATE FUNCTION awa.complete_jobs(jobs jsonb) RETURNS jsonb
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp {stable plans} AS $$
BEGIN
    RETURN (
        WITH input AS MATERIALIZED (
            SELECT value AS job, ordinality AS n, value ->> 'kind' AS kind, value ? 'as_given' AS as_given
            FROM jsonb_array_elements(jobs) WITH ORDINALITY
        ),
        -- One row per kind of the call, so that the join is cheap whatever its plan.
        declared AS MATERIALIZED (
            SELECT kinds AS declaration, kinds.kind FROM awa.kinds
            WHERE kinds.kind = ANY (ARRAY(SELECT DISTINCT kind FROM input WHERE NOT as_given))  -- not a join
        )
        SELECT coalesce(jsonb_agg(CASE WHEN as_given THEN job - 'as_given'
                                       WHEN declared.kind IS NULL THEN job
                                       ELSE awa.complete_job(job, declaration) END ORDER BY n), '[]')
        FROM input LEFT JOIN declared USING (kind)
    );
END $$;

REVOKE EXECUTE ON FUNCTION awa.complete_jobs FROM PUBLIC;

-- Return those of the kinds that nobody has declared.
CREATE FUNCTION awa.undeclared_kinds(wanted text[]) RETURNS text[]
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp {stable plans} AS $$
    SELECT coalesce(array_agg(DISTINCT name), '{}') FROM unnest(wanted) AS name
    WHERE NOT EXISTS (SELECT FROM awa.kinds WHERE kinds.kind = name OFFSET 0)  -- not an anti-join
$$;

REVOKE EXECUTE ON FUNCTION awa.undeclared_kinds FROM PUBLIC;

-- Return the replaced versions after `new_version` has replaced `old_version`: the latest 100.
CREATE FUNCTION awa.replace_version(replaced text[], old_version text, new_version text) RETURNS text[]
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT versions[greatest(cardinality(versions) - 100, 0) + 1:]
    FROM (SELECT array_remove(array_remove(replaced, old_version), new_version)
                 || CASE WHEN old_version <> new_version THEN ARRAY[old_version] ELSE '{}' END AS versions) AS shifted
$$;
