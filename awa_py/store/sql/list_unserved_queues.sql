-- The queues that have available jobs and no live worker. Without paused queues.
-- $1 staleness: workers that were silent for longer are dead
--
-- Walks from queue to queue by index: it never reads two jobs of the same queue.
WITH RECURSIVE waiting(name) AS (
    SELECT least((SELECT queue FROM awa.ready WHERE concurrency_key IS NULL ORDER BY queue LIMIT 1),
                 (SELECT queue FROM awa.ready WHERE concurrency_key IS NOT NULL ORDER BY queue LIMIT 1))
    UNION ALL
    SELECT least((SELECT queue FROM awa.ready WHERE concurrency_key IS NULL AND queue > waiting.name
                  ORDER BY queue LIMIT 1),
                 (SELECT queue FROM awa.ready WHERE concurrency_key IS NOT NULL AND queue > waiting.name
                  ORDER BY queue LIMIT 1))
    FROM waiting WHERE waiting.name IS NOT NULL
)
SELECT name
FROM waiting
WHERE name IS NOT NULL
  AND NOT EXISTS (SELECT FROM awa.queues q
                  WHERE q.name = waiting.name AND q.paused AND q.paused_until > now() IS NOT FALSE)
  AND NOT EXISTS (SELECT FROM awa.workers w
                  WHERE w.heartbeat_at > now() - $1::interval AND NOT w.quiet AND NOT w.stopping
                    AND waiting.name = ANY (w.queues))
ORDER BY name
