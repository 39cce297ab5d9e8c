-- Renew the leases of running jobs. Jobs that are not returned no longer belong to the worker.
-- $1 ids · $2 leases · $3 worker id
-- The lease begins when the row is written: now() is older if the statement had to wait for a lock.
UPDATE awa.running
SET heartbeat_at = clock_timestamp()
WHERE id = ANY ($1::bigint[])
  AND lease = ((SELECT jsonb_object($1::bigint[]::text[], $2::int[]::text[])) ->> id::text)::int
  AND worker_id = $3
RETURNING id, cancel_requested_at IS NOT NULL AS cancel
