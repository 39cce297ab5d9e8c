-- Lock running jobs whose children are about to be committed, so that a cancellation comes before or after them. Lease and
-- worker guard each job. Returns those that the worker holds and that are not being cancelled.
-- $1 ids · $2 leases · $3 worker id
SELECT id FROM awa.running
WHERE id = ANY ($1::bigint[])
  AND lease = ((SELECT jsonb_object($1::bigint[]::text[], $2::int[]::text[])) ->> id::text)::int
  AND worker_id = $3 AND cancel_requested_at IS NULL
ORDER BY id
FOR SHARE
