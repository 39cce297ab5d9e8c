-- Deletes completed jobs past a retention that a day partition cannot serve: less than a day, or less than another
-- queue's, or in the default partition. Bounded. Where every retention is served by dropping partitions, none is read.
-- $1 the default retention · $2 how many at the most
WITH kept AS MATERIALIZED (
    SELECT least($1::interval, min(completed_retention)) AS shortest,
           greatest($1::interval, max(completed_retention)) AS longest
    FROM awa.queues
),
stray AS (
    SELECT c.tableoid, c.ctid
    FROM awa.completed_default c LEFT JOIN awa.queues q ON q.name = c.queue
    WHERE c.finalized_at < now() - coalesce(q.completed_retention, $1::interval)
    LIMIT $2
    FOR UPDATE OF c SKIP LOCKED
),
early AS (
    SELECT c.tableoid, c.ctid
    FROM awa.completed c LEFT JOIN awa.queues q ON q.name = c.queue
    WHERE (SELECT shortest < interval '1 day' OR shortest < longest - interval '1 day' FROM kept)
      AND c.finalized_at < now() - (SELECT shortest FROM kept)
      AND c.finalized_at < now() - coalesce(q.completed_retention, $1::interval)
      AND (coalesce(q.completed_retention, $1::interval) < interval '1 day'
           OR coalesce(q.completed_retention, $1::interval) < (SELECT longest FROM kept) - interval '1 day')
    LIMIT $2
    FOR UPDATE OF c SKIP LOCKED
),
gone AS (
    DELETE FROM awa.completed c USING (SELECT * FROM stray UNION SELECT * FROM early LIMIT $2) AS old
    WHERE c.tableoid = old.tableoid AND c.ctid = old.ctid
    RETURNING 1
)
SELECT count(*) FROM gone
