-- Deletes jobs that are not running.
-- $1 ids
WITH ready AS (DELETE FROM awa.ready WHERE id = ANY ($1::bigint[]) RETURNING id),
later AS (DELETE FROM awa.scheduled WHERE id = ANY ($1::bigint[]) RETURNING id),
done AS (DELETE FROM awa.completed WHERE id = ANY ($1::bigint[]) RETURNING id),
dead AS (DELETE FROM awa.dead WHERE id = ANY ($1::bigint[]) RETURNING id)
SELECT id FROM ready UNION ALL SELECT id FROM later UNION ALL SELECT id FROM done UNION ALL SELECT id FROM dead
