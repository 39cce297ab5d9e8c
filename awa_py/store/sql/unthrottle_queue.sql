-- Lets a queue that cools down go on, and forgets how often it had to; the workers are told.
-- $1 name
-- Answers until when it should have rested, NULL where it did not; no row where there is no such queue.
WITH cooling AS (
    SELECT name, throttled_until FROM awa.queues WHERE name = $1 FOR UPDATE
),
cleared AS (
    UPDATE awa.queues q
    SET throttled_until = NULL, throttled_at = NULL, throttle_reason = NULL, throttles = 0, updated_at = now()
    FROM cooling WHERE q.name = cooling.name
    RETURNING q.name, CASE WHEN cooling.throttled_until > now() THEN cooling.throttled_until END AS throttled_until
),
told AS MATERIALIZED (
    SELECT count(pg_notify('awa', 'queues:' || name)), count(pg_notify('awa', 'ready:' || name)) FROM cleared
)
SELECT throttled_until FROM cleared CROSS JOIN told
