-- Of these jobs, those that are available and whose kind no live worker of their queue can run.
-- $1 ids, as the text of an array · $2 staleness: workers that were silent for longer are dead
-- $3 how long a job must have been due
WITH due AS MATERIALIZED (
    SELECT queue, kind, array_agg(id ORDER BY id) AS ids
    FROM awa.ready
    WHERE id = ANY ($1::text::bigint[]) AND run_at < now() - $3::interval
    GROUP BY queue, kind
)
SELECT queue, kind, ids
FROM due
WHERE NOT EXISTS (SELECT FROM awa.workers w
                  WHERE w.heartbeat_at > now() - $2::interval
                    AND due.queue = ANY (w.queues) AND due.kind = ANY (w.kinds))
ORDER BY queue, kind
