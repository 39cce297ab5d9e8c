-- Moves ready jobs up by one priority, to the end of its line, where they have waited at theirs for longer than their
-- queue allows and somebody is before them: where nobody is, it would change nothing. Not while the queue is paused or
-- throttled. Bounded; rows that somebody claims meanwhile are passed over.
-- $1 the queue after which to look · $2 how many queues at the most · $3 how long a job waits by default
-- $4 how many jobs of a queue and priority at the most, with a key and without
-- Answers how many it moved, and the queue to go on after (NULL: it was the last).
--
-- From one queue to the next by the indexes, and then only the heads of the lines: whatever waits behind is not read.
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
                  ORDER BY priority LIMIT 1)) AS first_level
    FROM walk LEFT JOIN awa.queues q ON q.name = walk.queue
    WHERE walk.queue IS NOT NULL AND coalesce(q.aging, $3::interval) > '0'
      AND (q.paused AND q.paused_until > now() IS NOT FALSE) IS NOT TRUE AND q.throttled_until > now() IS NOT TRUE
),
old AS MATERIALIZED (
    SELECT head.ctid
    FROM aging JOIN unnest('{2,3,4}'::smallint[]) AS level(priority) ON level.priority > aging.first_level
    CROSS JOIN LATERAL (
        (SELECT ctid, entered_at, ordered FROM awa.ready
         WHERE concurrency_key IS NULL AND queue = aging.queue AND priority = level.priority ORDER BY pos LIMIT $4)
        UNION ALL
        (SELECT ctid, entered_at, ordered FROM awa.ready
         WHERE concurrency_key IS NOT NULL AND queue = aging.queue AND priority = level.priority ORDER BY pos LIMIT $4)
    ) AS head
    WHERE head.entered_at < now() - aging.age
      AND ordered IS NOT TRUE  -- it would overtake one of its key that waits for its next attempt
),
moved AS (
    UPDATE awa.ready
    SET priority = priority - 1, pos = nextval('awa.pos'), entered_at = now()
    WHERE ctid = ANY (ARRAY(SELECT ctid FROM awa.ready WHERE ctid = ANY (ARRAY(SELECT ctid FROM old))
                            FOR UPDATE SKIP LOCKED))
    RETURNING 1
)
SELECT (SELECT count(*) FROM moved) AS moved, (SELECT queue FROM walk WHERE n = $2) AS go_on_after
