-- Renews the leases of running jobs. What does not come back is no longer the caller's.
-- $1 ids · $2 leases
UPDATE awa.running r
SET heartbeat_at = now()
FROM unnest($1::bigint[], $2::int[]) AS mine(id, lease)
WHERE r.id = mine.id AND r.lease = mine.lease
RETURNING r.id, r.cancel_requested_at IS NOT NULL AS cancel
