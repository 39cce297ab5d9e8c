-- Unique keys and the jobs that hold them. A holder loses its key when its state is none of `states` or expires_at has
-- passed. The next enqueue with the key takes it over; the leader deletes the others.

CREATE TABLE awa.unique_keys (
    key        text   COLLATE "C" PRIMARY KEY CONSTRAINT key_is_a_name
                      CHECK (length(key) BETWEEN 1 AND 1000 AND awa.is_plain(key)),
    job_id     bigint NOT NULL,
    expires_at timestamptz CONSTRAINT expires_at_is_between_1900_and_9000 CHECK (awa.is_time(expires_at)),
    states     text[] NOT NULL CONSTRAINT states_are_states CHECK (states <@ '{scheduled,available,running,retryable,
                                                                             waiting,completed,failed,cancelled}'::text[])
);

-- Acquire unique keys: write the rows whose keys no other job holds. Return the holder of each key, by key.
-- `wanted` is in the order of the keys, each of which occurs once, so that two callers with the same keys cannot
-- deadlock. A concurrent caller waits here until the first one commits or rolls back; the second statement then sees the
-- result. No statement joins: a plan that was made for an empty table is good for a full one.
CREATE FUNCTION awa.acquire_unique_keys(wanted awa.unique_keys[]) RETURNS jsonb
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp {stable plans} AS $$
DECLARE
    acquired jsonb;
    held     jsonb;
BEGIN
    WITH inserted AS (
        INSERT INTO awa.unique_keys (key, job_id, expires_at, states)
        SELECT key, job_id, expires_at, states FROM unnest(wanted)
        ON CONFLICT (key) DO UPDATE SET key = excluded.key WHERE false  -- locks the row without changing it
        RETURNING key, job_id
    )
    SELECT coalesce(jsonb_object_agg(key, job_id), '{}') INTO acquired FROM inserted;
    wanted := ARRAY(SELECT row FROM unnest(wanted) AS row WHERE NOT acquired ? row.key);
    IF wanted = '{}' THEN
        RETURN acquired;
    END IF;

    SELECT coalesce(jsonb_object_agg(key, job_id), '{}') INTO held
    FROM awa.unique_keys
    WHERE key = ANY (ARRAY(SELECT key FROM unnest(wanted)))
      AND (job_id = ANY (ARRAY(SELECT job_id FROM unnest(wanted)))  -- a finished job that is retried has its own key
           OR expires_at > now() IS NOT FALSE
              AND EXISTS (SELECT FROM awa.jobs WHERE id = unique_keys.job_id AND state = ANY (unique_keys.states)
                          OFFSET 0));  -- not a semi-join
    WITH taken_over AS (
        INSERT INTO awa.unique_keys (key, job_id, expires_at, states)
        SELECT key, job_id, expires_at, states FROM unnest(wanted) WHERE NOT held ? key
        ON CONFLICT (key) DO UPDATE
        SET job_id = excluded.job_id, expires_at = excluded.expires_at, states = excluded.states
        RETURNING key, job_id
    )
    SELECT acquired || held || coalesce(jsonb_object_agg(key, job_id), '{}') INTO acquired FROM taken_over;
    RETURN acquired;
END $$;

-- Acquire the unique key for a finished job that is retried. Return the id of the job that holds it now. The key's row
-- may have expired, or been deleted or taken over since; then the job holds the key until it ends.
CREATE FUNCTION awa.reacquire_unique_key(wanted text, ended_id bigint) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp {stable plans} AS $$
DECLARE
    unfinished CONSTANT text[] := '{scheduled,available,running,retryable,waiting}';
    holder     CONSTANT bigint :=
        awa.acquire_unique_keys(ARRAY[(wanted, ended_id, NULL, unfinished)::awa.unique_keys]) ->> wanted;
BEGIN
    -- Write the row even if nothing changes: a concurrent deletion that saw the job as finished skips a new row
    -- version.
    UPDATE awa.unique_keys
    SET expires_at = CASE WHEN expires_at > now() THEN expires_at END,
        states = CASE WHEN expires_at <= now() THEN unfinished ELSE states END
    WHERE key = wanted AND job_id = ended_id;
    RETURN holder;
END $$;
