-- Delete signals of jobs that have completed or were deleted, in a window of the jobs that have signals: those that were
-- sent to a job without durable calls, or at the same moment as its end. Failed jobs keep theirs, for a retry.
-- $1 the job id after which the window begins · $2 its number of signals
-- Returns the last job id and the number of signals of the window, and how many were deleted.
WITH window_signals AS MATERIALIZED (
    SELECT job_id FROM awa.signals WHERE job_id > $1 ORDER BY job_id LIMIT $2
),
-- In one snapshot, a signal that is visible and a job that is not mean that the job has ended.
stray AS MATERIALIZED (
    SELECT job_id FROM (SELECT DISTINCT job_id FROM window_signals) AS jobs WHERE NOT awa.needs_children(job_id)
),
deleted AS (DELETE FROM awa.signals WHERE job_id = ANY (ARRAY(SELECT job_id FROM stray)) RETURNING 1),
keys AS (DELETE FROM awa.signal_keys WHERE job_id = ANY (ARRAY(SELECT job_id FROM stray)))
SELECT (SELECT max(job_id) FROM window_signals) AS last_job, (SELECT count(*) FROM window_signals) AS seen,
       (SELECT count(*) FROM deleted) AS deleted
