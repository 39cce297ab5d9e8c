-- The events of a job, latest first.
-- $1 job id · $2 at most this many
SELECT awa.readable_time(at) AS at, event, lease, attempt, awa.readable_time(began_at) AS began_at, worker_id, detail
FROM awa.events
WHERE job_id = $1
ORDER BY events.at DESC
LIMIT $2
