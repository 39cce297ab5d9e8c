-- running → scheduled, the attempt given back, for when their queue goes on; or cancelled, where somebody asked for it.
-- Lease and worker guard each row. And the queue cools down: for 60 s, or by its backoff curve, longer each time. Whoever
-- comes while it does begins nothing: the job goes behind what has begun.
-- $1 ids · $2 leases · $3 worker id · $4 reasons
-- Answers the ids that were ours, each with the seconds for which its queue is to rest, how often in a row it was to, and
-- whether that began here.
WITH ended AS (
    DELETE FROM awa.running
    WHERE id = ANY ($1::bigint[])
      AND lease = ((SELECT jsonb_object($1::bigint[]::text[], $2::int[]::text[])) ->> id::text)::int
      AND worker_id = $3
    RETURNING *, (SELECT jsonb_object($1::bigint[]::text[], $4::text[])) ->> id::text AS reason
),
-- Queues are locked in the order of their names, so that two of these cannot deadlock. Who had to wait sees the row as
-- the other has left it.
cooled AS (
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
put AS (
    INSERT INTO awa.scheduled (state, {carried}, run_at, errors, attempt, lease)
    SELECT 'scheduled', {carried}, throttled_until, errors, attempt - 1, lease
    FROM ended JOIN cooled ON cooled.name = ended.queue
    WHERE cancel_requested_at IS NULL
),
buried AS (
    INSERT INTO awa.dead (state, {carried}, run_at, errors, attempt, lease, worker_id, attempted_at)
    SELECT 'cancelled', {carried}, run_at, awa.append_error(errors, attempt, 'cancelled by user'), attempt, lease,
           worker_id, attempted_at
    FROM ended WHERE cancel_requested_at IS NOT NULL
),
told AS MATERIALIZED (
    SELECT awa.wake(NULL, min(throttled_until)), count(pg_notify('awa', 'queues:' || name)) FILTER (WHERE started)
    FROM cooled
)
SELECT ended.id, extract(epoch FROM throttled_until - now())::float8 AS cooldown_s, throttles,
       started AND row_number() OVER (PARTITION BY name ORDER BY id) = 1 AS started
FROM ended JOIN cooled ON cooled.name = ended.queue CROSS JOIN told
