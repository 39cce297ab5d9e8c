-- The checkpoints of running jobs. Lease and worker guard each job: what a newer attempt recorded is not for this one.
-- $1 ids · $2 leases · $3 worker id
-- Returns a row for each checkpoint, and one without a name for each job that the worker holds.
SELECT held.id AS job_id, name, number, type, is_open, digest, tries, result::text AS result, error::text AS error,
       until, extract(epoch FROM until - clock_timestamp())::float8 AS left_s
FROM (SELECT id FROM awa.running
      WHERE id = ANY ($1::bigint[])
        AND lease = ((SELECT jsonb_object($1::bigint[]::text[], $2::int[]::text[])) ->> id::text)::int
        AND worker_id = $3) AS held
LEFT JOIN LATERAL (SELECT * FROM awa.checkpoints WHERE job_id = held.id OFFSET 0) AS checkpoints ON true
