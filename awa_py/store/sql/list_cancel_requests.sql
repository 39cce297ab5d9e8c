-- Which of a worker's running jobs somebody wants to stop: for where no notification can be heard.
-- $1 ids · $2 leases · $3 worker id
SELECT id
FROM awa.running
WHERE id = ANY ($1::bigint[])
  AND lease = ((SELECT jsonb_object($1::bigint[]::text[], $2::int[]::text[])) ->> id::text)::int
  AND worker_id = $3
  AND cancel_requested_at IS NOT NULL
