-- What a job's row forgets, and what the minutes were like.

-- What happened to a job that its row does not keep: earlier starts, and what ended them. Workers note it off the hot
-- path, so that a crash may lose some. A partition a day (UTC), dropped whole when old; the default one is the net.
CREATE TABLE awa.events (
    job_id    bigint      NOT NULL,
    at        timestamptz NOT NULL,
    event     text        NOT NULL,
    lease     int         NOT NULL,  -- which claim of the job it is about
    attempt   smallint    NOT NULL,
    began_at  timestamptz,           -- when that attempt did
    worker_id uuid,
    detail    text
) PARTITION BY RANGE (at);
CREATE INDEX events_job ON awa.events (job_id);
CREATE TABLE awa.events_default PARTITION OF awa.events DEFAULT;

-- The days ahead get their partitions; what waits in the default partition for such a day moves there.
-- Returns how many it made.
CREATE FUNCTION awa.make_days(parent text, key text, days_ahead int) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    day  date;
    part text;
    made int := 0;
BEGIN
    EXECUTE format('LOCK TABLE awa.%I IN SHARE UPDATE EXCLUSIVE MODE', parent);  -- one at a time; nobody else waits
    FOR day IN SELECT (now() AT TIME ZONE 'UTC')::date + g FROM generate_series(0, days_ahead) AS g LOOP
        part := parent || '_' || to_char(day, 'YYYYMMDD');
        CONTINUE WHEN to_regclass(format('%I.%I', 'awa', part)) IS NOT NULL;
        -- ATTACH locks less than CREATE … PARTITION OF: claims and finishes go on meanwhile. Vacuum comes early and often,
        -- which costs no more in all: it summarizes the BRIN index, by which the roll-up finds the last minutes.
        EXECUTE format('CREATE TABLE awa.%I (LIKE awa.%I INCLUDING DEFAULTS) WITH (autovacuum_vacuum_insert_threshold '
                       '= 100000, autovacuum_vacuum_insert_scale_factor = 0)', part, parent);
        EXECUTE format($move$
            WITH moved AS (DELETE FROM awa.%5$I WHERE %4$I >= %2$L AND %4$I < %3$L RETURNING *)
            INSERT INTO awa.%1$I SELECT * FROM moved $move$,
            part, day::text || ' 00:00+00', (day + 1)::text || ' 00:00+00', key, parent || '_default');
        EXECUTE format('ALTER TABLE awa.%I ATTACH PARTITION awa.%I FOR VALUES FROM (%L) TO (%L)',
                       parent, part, day::text || ' 00:00+00', (day + 1)::text || ' 00:00+00');
        made := made + 1;
    END LOOP;
    RETURN made;
END $$;

-- Drops the partitions whose whole day ended before `cutoff`. Returns how many.
CREATE FUNCTION awa.drop_days(parent text, cutoff timestamptz) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    part    name;
    dropped int := 0;
BEGIN
    EXECUTE format('LOCK TABLE awa.%I IN SHARE UPDATE EXCLUSIVE MODE', parent);
    FOR part IN
        SELECT child.relname
        FROM pg_inherits
        JOIN pg_class child ON child.oid = pg_inherits.inhrelid
        WHERE pg_inherits.inhparent = to_regclass(format('%I.%I', 'awa', parent))
          AND child.relname ~ '_\d{8}$'
          AND (to_date(right(child.relname, 8), 'YYYYMMDD') + 1)::timestamp AT TIME ZONE 'UTC' <= cutoff
    LOOP
        EXECUTE format('DROP TABLE awa.%I', part);
        dropped := dropped + 1;
    END LOOP;
    RETURN dropped;
END $$;

-- Those of completed jobs.
CREATE OR REPLACE FUNCTION awa.make_partitions(days_ahead int) RETURNS int
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT awa.make_days('completed', 'finalized_at', days_ahead)
$$;
CREATE OR REPLACE FUNCTION awa.drop_partitions(cutoff timestamptz) RETURNS int
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT awa.drop_days('completed', cutoff)
$$;

REVOKE EXECUTE ON FUNCTION awa.make_days(text, text, int), awa.drop_days(text, timestamptz) FROM PUBLIC;

DO $$
DECLARE
    part name;
BEGIN
    FOR part IN SELECT relname FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
                WHERE inhparent = 'awa.completed'::regclass AND relname ~ '_\d{8}$' LOOP
        EXECUTE format('ALTER TABLE awa.%I SET (autovacuum_vacuum_insert_threshold = 100000, '
                       'autovacuum_vacuum_insert_scale_factor = 0)', part);
    END LOOP;
END $$;
SELECT awa.make_days('events', 'at', 7);

-- Lengths of time are counted in cells, twenty of them a decade: cell 0 is up to a millisecond, cell n up to
-- 10^(n/20) milliseconds, and cell 200 the rest. Such counts can be added up, as percentiles cannot.
CREATE FUNCTION awa.cell(length interval) RETURNS int LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN length <= '1 ms' THEN 0
                WHEN length > '1 ms' THEN least(ceil(20 * log(date_part('epoch', length) * 1000)), 200)::int END
$$;

-- What a cell stands for, in seconds: its middle, from which nothing in it is further away than 6 %.
CREATE FUNCTION awa.seconds(cell int) RETURNS float8 LANGUAGE sql IMMUTABLE AS $$
    SELECT 10 ^ ((greatest(cell, 1) - 0.5::float8) / 20) / 1000 WHERE cell IS NOT NULL
$$;

-- What ended in each minute, by queue and kind. Waits are from due to claimed, of the last attempt; runs from claimed to
-- ended. Percentiles are in seconds; `waits` and `runs` are what they come from: pairs of a cell and its count.
CREATE TABLE awa.metric_buckets (
    at        timestamptz NOT NULL,
    queue     text        NOT NULL,
    kind      text        NOT NULL,
    completed int         NOT NULL,
    failed    int         NOT NULL,
    cancelled int         NOT NULL,
    retried   int         NOT NULL,  -- attempts before the last one
    wait_p50  float8,
    wait_p95  float8,
    wait_p99  float8,
    run_p50   float8,
    run_p95   float8,
    run_p99   float8,
    waits     int[],
    runs      int[],
    PRIMARY KEY (at, queue, kind)
);

-- Takes the unique key for an ended job that is to run again, or names the job that holds it. What the job was enqueued
-- with may be swept, taken over or over by now: then it holds the key until it ends.
CREATE FUNCTION awa.hold_unique_key_again(wanted text, ended_id bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    unfinished CONSTANT text[] := '{scheduled,available,running,retryable,waiting}';
    holder     CONSTANT bigint := awa.hold_unique_key(wanted, ended_id, NULL, unfinished);
BEGIN
    -- Written even where it stays the same: a sweep that began before, and saw the job ended, passes a new row by.
    UPDATE awa.unique_keys
    SET expires_at = CASE WHEN expires_at > now() THEN expires_at END,
        states = CASE WHEN expires_at <= now() THEN unfinished ELSE states END
    WHERE key = wanted AND job_id = ended_id;
    RETURN holder;
END $$;
