-- Remove checkpoints of running jobs: of steps whose recorded error left the handler after all. Lease and worker guard each
-- job.
-- $1 ids and $2 leases of the jobs · $3 worker id · of each checkpoint: $4 job id · $5 name
DELETE FROM awa.checkpoints
WHERE (job_id, name) IN (SELECT * FROM unnest($4::bigint[], $5::text[]))
  AND job_id = ANY (ARRAY(
      SELECT id FROM awa.running
      WHERE id = ANY ($1::bigint[])
        AND lease = ((SELECT jsonb_object($1::bigint[]::text[], $2::int[]::text[])) ->> id::text)::int
        AND worker_id = $3
      FOR KEY SHARE))
