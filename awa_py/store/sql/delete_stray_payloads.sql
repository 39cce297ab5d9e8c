-- Delete payloads without a job, in a window of the payloads in order: their jobs were deleted by hand. In one snapshot, a
-- payload that is visible and a job that is not mean that the job is gone.
-- $1 the job id after which the window begins · $2 its number of payloads
-- Returns the last job id and the number of payloads of the window, and how many were deleted.
WITH window_payloads AS MATERIALIZED (
    SELECT job_id FROM awa.payloads WHERE job_id > $1 ORDER BY job_id LIMIT $2
),
deleted AS (
    DELETE FROM awa.payloads
    WHERE job_id = ANY (ARRAY(SELECT job_id FROM window_payloads
                              WHERE NOT EXISTS (SELECT FROM awa.jobs WHERE id = window_payloads.job_id OFFSET 0)))
    RETURNING 1
)
SELECT (SELECT max(job_id) FROM window_payloads) AS last_job, (SELECT count(*) FROM window_payloads) AS seen,
       (SELECT count(*) FROM deleted) AS deleted
