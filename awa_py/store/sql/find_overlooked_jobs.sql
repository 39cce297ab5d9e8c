-- Finds jobs of a queue that a claim overlooks which begins where the last one ended: a few of each key that has room,
-- from key to key by the index, over whatever waits between; and those without a key that became visible late. What is
-- next in line, the claim sees by itself.
-- $1 queue · $2 the position of each priority where such a claim begins · $3 the kinds that the caller can run
-- $4 how many keys to look at, at the most
-- $5 the key after which to begin, '' for the first · $6 how many such a claim asks for: a few more are found of either sort
-- Answers their ids, and the key to go on after; '' where it was the last.
WITH RECURSIVE
walk AS (
    (SELECT concurrency_key AS key, concurrency_limit AS most_of_key, ordered, 1 AS n
     FROM awa.ready
     WHERE queue = $1 AND concurrency_key > $5
     ORDER BY concurrency_key, priority, id LIMIT 1)
    UNION ALL
    SELECT next.key, next.most_of_key, next.ordered, n + 1
    FROM walk CROSS JOIN LATERAL (
        SELECT concurrency_key AS key, concurrency_limit AS most_of_key, ordered
        FROM awa.ready
        WHERE queue = $1 AND concurrency_key > walk.key
        ORDER BY concurrency_key, priority, id LIMIT 1
    ) AS next
    WHERE n < $4
),
with_room AS (
    -- Grouped, not joined: where these sessions may not hash, a join is a loop over what runs for each key.
    SELECT key, max(most_of_key) AS most_of_key, bool_or(ordered) AS ordered, count(*) FILTER (WHERE runs) AS busy
    FROM (SELECT key, most_of_key, ordered, false AS runs FROM walk
          UNION ALL
          SELECT concurrency_key, NULL, NULL, true FROM awa.running_with_key()) AS everybody
    GROUP BY key
    HAVING max(most_of_key) > count(*) FILTER (WHERE runs)
),
keyed AS (
    SELECT head.id, head.priority, head.pos, busy + head.nth AS turn
    FROM with_room CROSS JOIN LATERAL (
        SELECT id, priority, pos, row_number() OVER (ORDER BY priority, id) AS nth
        FROM awa.ready
        WHERE queue = $1 AND concurrency_key = with_room.key
          AND (with_room.ordered OR (kind = ANY ($3::text[]) AND (expires_at IS NULL OR expires_at > now())))
        ORDER BY priority, id
        LIMIT least(most_of_key - busy, 1 + ($6 + 100) / (SELECT count(*) FROM with_room))
    ) AS head
),
line AS MATERIALIZED (
    SELECT priority, max(pos) AS until
    FROM (SELECT level.priority, head.pos
          FROM unnest('{1,2,3,4}'::smallint[], $2::bigint[]) AS level(priority, above)
          CROSS JOIN LATERAL (
              SELECT pos
              FROM awa.ready
              WHERE queue = $1 AND priority = level.priority AND pos > level.above AND concurrency_key IS NOT NULL
                AND kind = ANY ($3) AND (expires_at IS NULL OR expires_at > now())
              ORDER BY pos
              LIMIT $6
          ) AS head
          LIMIT $6) AS next
    GROUP BY priority
),
overlooked AS (
    SELECT id, turn FROM keyed
    WHERE NOT EXISTS (SELECT FROM line
                      WHERE line.priority = keyed.priority AND pos > ($2::bigint[])[keyed.priority] AND pos <= until)
),
late AS (
    SELECT head.id
    FROM unnest('{1,2,3,4}'::smallint[], $2::bigint[]) AS level(priority, above)
    CROSS JOIN LATERAL (
        SELECT id
        FROM awa.ready
        WHERE queue = $1 AND priority = level.priority AND pos <= level.above AND concurrency_key IS NULL
          AND kind = ANY ($3) AND (expires_at IS NULL OR expires_at > now())
        ORDER BY pos
        LIMIT $6 + 100
    ) AS head
    LIMIT $6 + 100
)
SELECT ARRAY(SELECT id FROM overlooked ORDER BY turn LIMIT $6 + 100) || ARRAY(SELECT id FROM late) AS ids,
       coalesce((SELECT key FROM walk WHERE n = $4), '') AS go_on_after
