-- Find jobs of a queue that a limited claim does not see because its scan starts behind them or ends before them: a few jobs
-- of each key that has room, and jobs without a key that became visible late.
-- $1 queue · $2 positions: one for each priority; the claim's scan starts behind it · $3 the kinds that the worker can run
-- $4 the largest number of keys to look at · $5 the key to start behind, '' for the first · $6 the largest number of ids
-- Returns the ids, and the key to continue behind: '' after the last one.
--
-- The walk goes from key to key through the index, so 100,000 jobs of a full key cost one step.
WITH RECURSIVE
keys AS (
    (SELECT concurrency_key AS key, concurrency_limit, ordered, 1 AS n
     FROM awa.ready
     WHERE queue = $1 AND concurrency_key > $5
     ORDER BY concurrency_key, priority, id LIMIT 1)
    UNION ALL
    SELECT next.*, n + 1
    FROM keys CROSS JOIN LATERAL (
        SELECT concurrency_key, concurrency_limit, ordered
        FROM awa.ready
        WHERE queue = $1 AND concurrency_key > keys.key
        ORDER BY concurrency_key, priority, id LIMIT 1
    ) AS next
    WHERE n < $4
),
keys_with_room AS (
    -- Grouped, not joined: without hash joins, a join is a loop over the running jobs for each key.
    SELECT key, max(concurrency_limit) AS concurrency_limit, bool_or(ordered) AS ordered,
           count(*) FILTER (WHERE is_running) AS running
    FROM (SELECT key, concurrency_limit, ordered, false AS is_running FROM keys
          UNION ALL
          SELECT concurrency_key, NULL, NULL, true FROM awa.running_with_key()) AS each
    GROUP BY key
    HAVING max(concurrency_limit) > count(*) FILTER (WHERE is_running)
),
keyed AS (
    SELECT head.id, keys_with_room.running + head.nth AS place
    FROM keys_with_room CROSS JOIN LATERAL (
        SELECT id, row_number() OVER (ORDER BY priority, id) AS nth
        FROM awa.ready
        WHERE queue = $1 AND concurrency_key = keys_with_room.key
          -- An ordered key waits for its first job, whatever its kind.
          AND (keys_with_room.ordered OR (kind = ANY ($3::text[]) AND (expires_at IS NULL OR expires_at > now())))
        ORDER BY priority, id
        LIMIT least(keys_with_room.concurrency_limit - keys_with_room.running, 1 + $6 / (SELECT count(*) FROM keys_with_room))
    ) AS head
    ORDER BY place
    LIMIT $6
),
late AS (
    SELECT head.id
    FROM unnest('{1,2,3,4}'::smallint[], $2::bigint[]) AS level(priority, after_position)
    CROSS JOIN LATERAL (
        SELECT id
        FROM awa.ready
        WHERE queue = $1 AND priority = level.priority AND pos <= level.after_position AND concurrency_key IS NULL
          AND kind = ANY ($3) AND (expires_at IS NULL OR expires_at > now())
        ORDER BY pos
        LIMIT $6
    ) AS head
    LIMIT $6
)
SELECT ARRAY(SELECT id FROM keyed) || ARRAY(SELECT id FROM late) AS ids,
       coalesce((SELECT key FROM keys WHERE n = $4), '') AS continue_after
