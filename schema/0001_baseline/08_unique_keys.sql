-- Unique keys and the jobs that hold them. A holder loses its key when its state is none of `states` or expires_at has
-- passed. The next enqueue with the key takes it over; the leader deletes the others.

CREATE TABLE awa.unique_keys (
    key        text   PRIMARY KEY,
    job_id     bigint NOT NULL,
    expires_at timestamptz,
    states     text[] NOT NULL
);

-- Acquire the unique key for `new_id`. Return the id of the job that holds it now. A concurrent caller waits here until
-- the first one commits or rolls back; the second statement then sees the result.
CREATE FUNCTION awa.acquire_unique_key(wanted text, new_id bigint, period interval, held_in text[])
RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    holder awa.unique_keys;
BEGIN
    INSERT INTO awa.unique_keys (key, job_id, expires_at, states)
    VALUES (wanted, new_id, now() + period, held_in)
    ON CONFLICT (key) DO UPDATE SET key = excluded.key WHERE false;  -- locks the row without changing it
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

-- Acquire the unique key for a finished job that is retried. Return the id of the job that holds it now. The key's row
-- may have expired, or been deleted or taken over since; then the job holds the key until it ends.
CREATE FUNCTION awa.reacquire_unique_key(wanted text, ended_id bigint) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    unfinished CONSTANT text[] := '{scheduled,available,running,retryable,waiting}';
    holder     CONSTANT bigint := awa.acquire_unique_key(wanted, ended_id, NULL, unfinished);
BEGIN
    -- Write the row even if nothing changes: a concurrent deletion that saw the job as finished skips a new row
    -- version.
    UPDATE awa.unique_keys
    SET expires_at = CASE WHEN expires_at > now() THEN expires_at END,
        states = CASE WHEN expires_at <= now() THEN unfinished ELSE states END
    WHERE key = wanted AND job_id = ended_id;
    RETURN holder;
END $$;
