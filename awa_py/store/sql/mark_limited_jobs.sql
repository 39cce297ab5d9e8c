-- Counts running jobs that were claimed before their queue had max_workers.
-- $1 the queue, NULL: all · $2 how many at the most
WITH uncounted AS MATERIALIZED (
    SELECT id
    FROM awa.running
    WHERE NOT limited
      AND queue = ANY (ARRAY(SELECT name FROM awa.queues
                             WHERE max_workers IS NOT NULL AND ($1::text IS NULL OR name = $1)))
    LIMIT $2
    FOR UPDATE SKIP LOCKED
),
marked AS (
    UPDATE awa.running SET limited = true WHERE id IN (SELECT id FROM uncounted) RETURNING 1
)
SELECT count(*) FROM marked
