-- Jobs by id, in whatever state.
-- $1 ids
SELECT id, kind, queue, state, priority, attempt, max_attempts, args::text AS args, run_at, created_at, attempted_at,
       finalized_at, heartbeat_at, deadline_at, worker_id, lease, errors::text AS errors, progress::text AS progress,
       result::text AS result, tags, metadata::text AS metadata, unique_key, parent_id, timeout, rescues,
       cancel_requested_at
FROM awa.jobs
WHERE id = ANY ($1::bigint[])
