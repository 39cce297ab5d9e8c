-- Pause a queue, forever or until a time, or resume it. Notify the workers and the leader.
-- $1 name · $2 paused · $3 for how long · $4 or until when (both NULL: until it is resumed)
WITH written AS (
    INSERT INTO awa.queues (name, paused, paused_until)
    VALUES ($1, $2, CASE WHEN $2 THEN coalesce($4::timestamptz, now() + $3::interval) END)
    ON CONFLICT (name) DO UPDATE
    SET paused = excluded.paused, paused_until = excluded.paused_until, updated_at = now()
    RETURNING name, paused
)
SELECT count(pg_notify('awa', 'queues:' || name)), count(pg_notify('awa' || ':leader', 'queues:' || name)),
       count(pg_notify('awa', 'ready:' || name)) FILTER (WHERE NOT paused)
FROM written
