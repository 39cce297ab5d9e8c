-- Write the progress of running jobs. Lease and worker guard each row.
-- $1 ids · $2 leases · $3 worker id · $4 progress, JSON
UPDATE awa.running
SET progress = ((SELECT jsonb_object($1::bigint[]::text[], $4::text[])) ->> id::text)::jsonb
WHERE id = ANY ($1::bigint[])
  AND lease = ((SELECT jsonb_object($1::bigint[]::text[], $2::int[]::text[])) ->> id::text)::int
  AND worker_id = $3
