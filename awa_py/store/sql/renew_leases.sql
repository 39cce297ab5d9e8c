-- Renew the leases of running jobs. Jobs that are not returned are locked, or no longer belong to the worker: see
-- check_leases. A lock is no reason to wait, because it may last: one job would cost the worker all of its leases.
-- $1 ids · $2 leases · $3 worker id
-- The lease begins when the row is written: now() is older if the statement had to wait for a lock of the table.
UPDATE awa.running
SET heartbeat_at = clock_timestamp()
WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM awa.running
    WHERE id = ANY ($1::bigint[])
      AND lease = ((SELECT jsonb_object($1::bigint[]::text[], $2::int[]::text[])) ->> id::text)::int
      AND worker_id = $3
    FOR NO KEY UPDATE SKIP LOCKED
))
RETURNING id, cancel_requested_at IS NOT NULL AS cancel
