-- What was noted of a job, the latest first.
-- $1 job id · $2 how many at the most
SELECT at, event, lease, attempt, began_at, worker_id, detail
FROM awa.events
WHERE job_id = $1
ORDER BY at DESC
LIMIT $2
