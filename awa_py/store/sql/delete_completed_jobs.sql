-- Deletes completed jobs past a retention that a day partition cannot serve: less than a day, or less than another
-- queue's, or in the default partition. Bounded.
-- $1 the default retention · $2 how many at the most
WITH old AS (
    SELECT c.tableoid, c.ctid
    FROM awa.completed c LEFT JOIN awa.queues q ON q.name = c.queue
    WHERE c.finalized_at < now() - least($1::interval, (SELECT min(completed_retention) FROM awa.queues))
      AND c.finalized_at < now() - coalesce(q.completed_retention, $1::interval)
      AND (coalesce(q.completed_retention, $1::interval) < interval '1 day'
           OR coalesce(q.completed_retention, $1::interval)
              < greatest($1::interval, (SELECT max(completed_retention) FROM awa.queues)) - interval '1 day'
           OR c.tableoid = 'awa.completed_default'::regclass)
    LIMIT $2
    FOR UPDATE OF c SKIP LOCKED
),
gone AS (
    DELETE FROM awa.completed c USING old
    WHERE c.tableoid = old.tableoid AND c.ctid = old.ctid
    RETURNING 1
)
SELECT count(*) FROM gone
