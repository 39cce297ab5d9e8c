-- running → completed, or deleted where the queue keeps nothing. The lease guards each row.
-- $1 ids and $2 leases, as the texts of arrays · $3 results, JSON or NULL · $4 whether completed jobs are kept by default
-- $5 how many they are
-- Answers the ids that were ours, or NULL where all were.
WITH ended AS (
    DELETE FROM awa.running r
    USING unnest($1::text::bigint[], $2::text::int[], $3::text[]) AS done(id, lease, result)
    WHERE r.id = done.id AND r.lease = done.lease
    RETURNING r.*, done.result
),
kept AS (
    INSERT INTO awa.completed ({carried}, run_at, errors, attempt, lease, worker_id, attempted_at, result)
    SELECT {carried}, run_at, errors, attempt, lease, worker_id, attempted_at, result::jsonb
    FROM ended
    WHERE CASE WHEN $4 THEN NOT EXISTS (SELECT FROM awa.queues
                                        WHERE name = ended.queue AND completed_retention = '0')
               ELSE EXISTS (SELECT FROM awa.queues WHERE name = ended.queue AND completed_retention > '0') END
)
SELECT CASE WHEN count(*) = $5 THEN NULL ELSE coalesce(array_agg(id), '{}') END FROM ended
