-- The partitions of awa.completed and awa.events: one per day (UTC), created ahead and dropped as a whole. The
-- functions run as the schema's owner, because the leader's role owns no tables.

-- Create the partitions of today and the next `days_ahead` days. Rows of such a day that are in the default partition
-- move into the new one. Return the number of partitions created.
CREATE FUNCTION awa.create_day_partitions(parent text, days_ahead int) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    key CONSTANT name := (SELECT attname
                          FROM pg_partitioned_table JOIN pg_attribute ON attrelid = partrelid AND attnum = partattrs[0]
                          WHERE partrelid = to_regclass(format('%I.%I', 'awa', parent)));
    day          date;
    part         text;
    created      int := 0;
BEGIN
    -- One caller at a time; the lock does not block reads and writes.
    EXECUTE format('LOCK TABLE awa.%I IN SHARE UPDATE EXCLUSIVE MODE', parent);
    FOR day IN SELECT (now() AT TIME ZONE 'UTC')::date + n FROM generate_series(0, days_ahead) AS n LOOP
        part := parent || '_' || to_char(day, 'YYYYMMDD');
        CONTINUE WHEN to_regclass(format('%I.%I', 'awa', part)) IS NOT NULL;
        -- ATTACH takes a weaker lock than CREATE … PARTITION OF, so claims and outcomes are not blocked.
        -- Vacuum runs early and often, which costs no more in total: it summarizes the BRIN index that the roll-up
        -- reads to find the last minutes.
        EXECUTE format('CREATE TABLE awa.%I (LIKE awa.%I INCLUDING DEFAULTS) WITH (autovacuum_vacuum_insert_threshold '
                       '= 100000, autovacuum_vacuum_insert_scale_factor = 0)', part, parent);
        EXECUTE format($move$
            WITH moved AS (DELETE FROM awa.%5$I WHERE %4$I >= %2$L AND %4$I < %3$L RETURNING *)
            INSERT INTO awa.%1$I SELECT * FROM moved $move$,
            part, day::text || ' 00:00+00', (day + 1)::text || ' 00:00+00', key, parent || '_default');
        EXECUTE format('ALTER TABLE awa.%I ATTACH PARTITION awa.%I FOR VALUES FROM (%L) TO (%L)',
                       parent, part, day::text || ' 00:00+00', (day + 1)::text || ' 00:00+00');
        created := created + 1;
    END LOOP;
    RETURN created;
END $$;

-- Drop the partitions of days that ended before `cutoff`, except those with jobs that have a payload: these are deleted
-- first, in batches, by delete_completed_jobs. Return the number of partitions dropped.
CREATE FUNCTION awa.drop_day_partitions(parent text, cutoff timestamptz) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    part         name;
    has_payloads boolean := false;
    dropped      int := 0;
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
        IF parent = 'completed' THEN
            EXECUTE format('SELECT EXISTS (SELECT FROM awa.%I WHERE args IS NULL)', part) INTO has_payloads;
        END IF;
        CONTINUE WHEN has_payloads;
        EXECUTE format('DROP TABLE awa.%I', part);
        dropped := dropped + 1;
    END LOOP;
    RETURN dropped;
END $$;

REVOKE EXECUTE ON FUNCTION awa.create_day_partitions, awa.drop_day_partitions FROM PUBLIC;

SELECT awa.create_day_partitions('completed', 7);
