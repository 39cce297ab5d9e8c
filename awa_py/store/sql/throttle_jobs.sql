-- running → scheduled until their queue's cooldown ends; or cancelled, if requested. The attempt does not count. Lease
-- and worker guard each row. Starts the cooldown of the queue: 60 s, or by its backoff, longer each time. During a
-- cooldown no other one starts, and the job only waits for its end.
-- $1 ids · $2 leases · $3 worker id · $4 reasons
-- Returns the ids that the worker held, with the seconds of the cooldown, the number of cooldowns in a row, and whether
-- this job started it.
WITH ended AS (
    DELETE FROM awa.running
    WHERE id = ANY ($1::bigint[])
      AND lease = ((SELECT jsonb_object($1::bigint[]::text[], $2::int[]::text[])) ->> id::text)::int
      AND worker_id = $3
    RETURNING *, (SELECT jsonb_object($1::bigint[]::text[], $4::text[])) ->> id::text AS reason
),
-- Queues are locked in order of name, so that two of these statements cannot deadlock. After a wait, ON CONFLICT sees
-- the row as the other statement left it.
cooldowns AS (
    INSERT INTO awa.queues AS q (name, throttled_until, throttled_at, throttle_reason, throttles)
    SELECT queue, now() + interval '60 seconds', now(), reason, 1
    FROM (SELECT DISTINCT ON (queue) queue, reason FROM ended ORDER BY queue, id) AS each
    ORDER BY queue
    ON CONFLICT (name) DO UPDATE
    SET (throttled_until, throttled_at, throttle_reason, throttles) = (
        SELECT q.throttled_until, q.throttled_at, q.throttle_reason, q.throttles
        WHERE q.throttled_until > now()
        UNION ALL
        SELECT now() + make_interval(secs => CASE
                   WHEN q.backoff_enabled THEN least(
                       extract(epoch FROM coalesce(q.backoff_base, '60 seconds'))::float8 * 2 ^ least({throttles}, 30),
                       extract(epoch FROM coalesce(q.backoff_max, '1800 seconds'))::float8)
                   ELSE 60 END),
               now(), excluded.throttle_reason, {throttles} + 1
        WHERE q.throttled_until > now() IS NOT TRUE
    )
    RETURNING name, throttled_until, throttles, throttled_at = now() AS started
),
rescheduled AS (
    INSERT INTO awa.scheduled (state, {carried}, run_at, errors, attempt, lease)
    SELECT 'scheduled', {carried}, throttled_until, errors, attempt - 1, lease
    FROM ended JOIN cooldowns ON cooldowns.name = ended.queue
    WHERE cancel_requested_at IS NULL
),
cancelled AS (
    INSERT INTO awa.dead (state, {carried}, run_at, errors, attempt, lease, worker_id, attempted_at)
    SELECT 'cancelled', {carried}, run_at, awa.append_error(errors, attempt, 'cancelled by user', worker_id),
           attempt, lease, worker_id, attempted_at
    FROM ended WHERE cancel_requested_at IS NOT NULL
),
notified AS MATERIALIZED (
    SELECT awa.wake(NULL, min(throttled_until)), count(pg_notify('awa', 'queues:' || name)) FILTER (WHERE started)
    FROM cooldowns
)
SELECT ended.id, extract(epoch FROM throttled_until - now())::float8 AS cooldown_s, throttles,
       started AND row_number() OVER (PARTITION BY name ORDER BY id) = 1 AS started
FROM ended JOIN cooldowns ON cooldowns.name = ended.queue CROSS JOIN notified
