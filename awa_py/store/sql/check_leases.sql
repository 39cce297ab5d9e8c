-- The running jobs that still belong to the worker, and whether they are to be cancelled. Renews nothing.
-- $1 ids · $2 leases · $3 worker id
SELECT id, cancel_requested_at IS NOT NULL AS cancel
FROM awa.running
WHERE id = ANY ($1::bigint[])
  AND lease = ((SELECT jsonb_object($1::bigint[]::text[], $2::int[]::text[])) ->> id::text)::int
  AND worker_id = $3
