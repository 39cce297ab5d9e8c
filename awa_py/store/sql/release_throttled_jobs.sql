-- Makes the jobs due that wait for nothing but the end of their queue's rest; the leader is told.
-- $1 queue · $2 until when it should have rested
-- Answers how many.
WITH hastened AS (
    UPDATE awa.scheduled SET run_at = now() WHERE queue = $1 AND run_at = $2 AND state = 'scheduled' RETURNING run_at
)
SELECT count(*) FROM (SELECT FROM hastened) AS jobs CROSS JOIN (SELECT awa.wake(NULL, min(run_at)) FROM hastened) AS told
