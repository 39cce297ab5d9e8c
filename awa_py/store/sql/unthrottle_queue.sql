-- End the cooldown of a queue and reset its count. Notify the workers.
-- $1 name
-- Returns when the cooldown would have ended (NULL: there was none), or no row if the queue does not exist.
WITH cooling AS (
    SELECT name, throttled_until FROM awa.queues WHERE name = $1 FOR UPDATE
),
cleared AS (
    UPDATE awa.queues q
    SET throttled_until = NULL, throttled_at = NULL, throttle_reason = NULL, throttles = 0, updated_at = now()
    FROM cooling WHERE q.name = cooling.name
    RETURNING q.name, CASE WHEN cooling.throttled_until > now() THEN cooling.throttled_until END AS throttled_until
),
notified AS MATERIALIZED (
    SELECT count(pg_notify('awa', 'queues:' || name)), count(pg_notify('awa', 'ready:' || name)) FROM cleared
)
SELECT throttled_until FROM cleared CROSS JOIN notified
