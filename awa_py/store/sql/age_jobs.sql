-- Raise the priority of available jobs by one if they waited at theirs for longer than their queue's aging, and jobs of
-- a higher priority are before them. They go to the end of the higher priority. Skips paused and throttled queues, and
-- rows that are being claimed. Bounded.
-- $1 the queue after which to start · $2 at most this many queues · $3 the default aging
-- $4 at most this many jobs per queue and priority, of those with a concurrency key and of those without
-- Returns the number of jobs, and the queue after which to continue (NULL: that was the last).
--
-- Walks from queue to queue by index, and reads only the first jobs of each priority.
WITH RECURSIVE walk(queue, n) AS (
    SELECT least((SELECT queue FROM awa.ready WHERE concurrency_key IS NULL AND queue > $1 ORDER BY queue LIMIT 1),
                 (SELECT queue FROM awa.ready WHERE concurrency_key IS NOT NULL AND queue > $1 ORDER BY queue LIMIT 1)),
           1
    UNION ALL
    SELECT least((SELECT queue FROM awa.ready WHERE concurrency_key IS NULL AND queue > walk.queue
                  ORDER BY queue LIMIT 1),
                 (SELECT queue FROM awa.ready WHERE concurrency_key IS NOT NULL AND queue > walk.queue
                  ORDER BY queue LIMIT 1)),
           n + 1
    FROM walk WHERE queue IS NOT NULL AND n < $2
),
aging AS MATERIALIZED (
    SELECT walk.queue, coalesce(q.aging, $3::interval) AS age,
           least((SELECT priority FROM awa.ready WHERE concurrency_key IS NULL AND queue = walk.queue
                  ORDER BY priority LIMIT 1),
                 (SELECT priority FROM awa.ready WHERE concurrency_key IS NOT NULL AND queue = walk.queue
                  ORDER BY priority LIMIT 1)) AS first_priority
    FROM walk LEFT JOIN awa.queues q ON q.name = walk.queue
    WHERE walk.queue IS NOT NULL AND coalesce(q.aging, $3::interval) > '0'
      AND (q.paused AND q.paused_until > now() IS NOT FALSE) IS NOT TRUE AND q.throttled_until > now() IS NOT TRUE
),
old AS MATERIALIZED (
    SELECT head.ctid
    FROM aging JOIN unnest('{2,3,4}'::smallint[]) AS level(priority) ON level.priority > aging.first_priority
    CROSS JOIN LATERAL (
        (SELECT ctid, entered_at, ordered FROM awa.ready
         WHERE concurrency_key IS NULL AND queue = aging.queue AND priority = level.priority ORDER BY pos LIMIT $4)
        UNION ALL
        (SELECT ctid, entered_at, ordered FROM awa.ready
         WHERE concurrency_key IS NOT NULL AND queue = aging.queue AND priority = level.priority ORDER BY pos LIMIT $4)
    ) AS head
    WHERE head.entered_at < now() - aging.age
      AND ordered IS NOT TRUE  -- it would overtake a job of its key that waits for its next attempt
),
moved AS (
    UPDATE awa.ready
    SET priority = priority - 1, pos = nextval('awa.pos'), entered_at = now()
    WHERE ctid = ANY (ARRAY(SELECT ctid FROM awa.ready WHERE ctid = ANY (ARRAY(SELECT ctid FROM old))
                            FOR UPDATE SKIP LOCKED))
    RETURNING 1
)
SELECT (SELECT count(*) FROM moved) AS moved, (SELECT queue FROM walk WHERE n = $2) AS continue_after
