-- The running jobs of a worker that are to be cancelled, for workers that cannot receive notifications.
-- $1 ids · $2 leases · $3 worker id
SELECT id
FROM awa.running
WHERE id = ANY ($1::bigint[])
  AND lease = ((SELECT jsonb_object($1::bigint[]::text[], $2::int[]::text[])) ->> id::text)::int
  AND worker_id = $3
  AND cancel_requested_at IS NOT NULL
