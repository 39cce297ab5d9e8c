-- Make the jobs due that wait only for the end of their queue's cooldown, and notify the leader. Returns how many.
-- $1 queue · $2 when the cooldown would have ended
WITH released AS (
    UPDATE awa.scheduled SET run_at = now() WHERE queue = $1 AND run_at = $2 AND state = 'scheduled' RETURNING run_at
)
SELECT count(*)
FROM (SELECT FROM released) AS jobs CROSS JOIN (SELECT awa.wake(NULL, min(run_at)) FROM released) AS notified
