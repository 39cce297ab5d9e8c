-- Record checkpoints of running jobs. Lease and worker guard each job. A statement that is repeated, because its answer was
-- lost, changes nothing and returns the same.
-- $1 ids and $2 leases of the jobs · $3 worker id
-- Of each checkpoint: $4 job id · $5 name · $6 number · $7 type · $8 tries · $9 seconds that it took · $10 digest of the arguments
-- $11 result, JSON · $12 error, JSON · $13 delay of a timer · $14 its time, instead of a delay
-- Returns one row: the jobs that the worker holds, and the timers with their times and the seconds that are left, as arrays.
--
-- The rows of the jobs are locked until the commit: a rescue skips them, a heartbeat does not wait. The held jobs are
-- looked up in a JSON object, because a search in an array for each checkpoint takes quadratic time.
WITH held AS MATERIALIZED (
    SELECT id FROM awa.running
    WHERE id = ANY ($1::bigint[])
      AND lease = ((SELECT jsonb_object($1::bigint[]::text[], $2::int[]::text[])) ->> id::text)::int
      AND worker_id = $3
    FOR KEY SHARE
),
recorded AS (
    INSERT INTO awa.checkpoints (job_id, name, number, type, lease, tries, took_s, digest, result, error, until, is_open)
    SELECT new.job_id, new.name, new.number, new.type,
           ((SELECT jsonb_object($1::bigint[]::text[], $2::int[]::text[])) ->> new.job_id::text)::int,
           new.tries, new.took_s, new.digest, new.result::json, new.error::json, coalesce(now() + new.delay, new.until),
           new.type = 'timer'
    FROM unnest($4::bigint[], $5::text[], $6::int[], $7::text[], $8::smallint[], $9::real[], $10::bigint[], $11::text[],
                $12::text[], $13::interval[], $14::timestamptz[])
         AS new(job_id, name, number, type, tries, took_s, digest, result, error, delay, until)
    WHERE (SELECT jsonb_object_agg(id, true) FROM held) ? new.job_id::text
    ON CONFLICT (job_id, name) DO UPDATE SET name = excluded.name  -- returns the row that is there
    RETURNING job_id, name, until
)
SELECT ARRAY(SELECT id FROM held) AS held,
       coalesce(array_agg(job_id) FILTER (WHERE until IS NOT NULL), '{}') AS timer_jobs,
       coalesce(array_agg(name) FILTER (WHERE until IS NOT NULL), '{}') AS timer_names,
       coalesce(array_agg(until) FILTER (WHERE until IS NOT NULL), '{}') AS timer_untils,
       coalesce(array_agg(extract(epoch FROM until - clock_timestamp())::float8) FILTER (WHERE until IS NOT NULL),
                '{}') AS timers_left_s
FROM recorded
