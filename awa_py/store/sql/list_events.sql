-- The events of a job, latest first.
-- $1 job id · $2 at most this many
SELECT at, event, lease, attempt, began_at, worker_id, detail
FROM awa.events
WHERE job_id = $1
ORDER BY at DESC
LIMIT $2
