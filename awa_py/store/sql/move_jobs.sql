-- Move jobs that are available, scheduled, retryable or waiting to another queue or priority. Available jobs go to the
-- end, in their order. A job that is already there keeps its position.
-- $1 ids · $2 the state and the lease that each job must have, a JSON object: {"17": "available 0"} (NULL: any)
-- $3 queue · $4 priority (each NULL: no change)
-- Returns the ids that were found.
WITH seen AS MATERIALIZED (SELECT $2::text::jsonb AS by_id),
locked AS MATERIALIZED (
    SELECT id, queue, priority, pos
    FROM awa.ready
    WHERE id = ANY ($1::bigint[]) AND ($2::text IS NULL OR (SELECT by_id FROM seen) ->> id::text = 'available ' || lease)
    ORDER BY id
    FOR UPDATE
),
positioned AS MATERIALIZED (
    SELECT array_agg(id) AS ids, jsonb_object_agg(id, nextval('awa.pos')) AS pos_by_id
    FROM (SELECT id FROM locked
          WHERE (queue, priority) <> (coalesce($3, queue), coalesce($4::smallint, priority))
          ORDER BY priority, pos OFFSET 0) AS in_order
),
moved AS (
    UPDATE awa.ready
    SET queue = coalesce($3, queue), priority = coalesce($4, priority), entered_at = now(),
        pos = ((SELECT pos_by_id FROM positioned) ->> id::text)::bigint
    WHERE id = ANY ((SELECT ids FROM positioned)::bigint[])
    RETURNING queue
),
moved_scheduled AS (
    UPDATE awa.scheduled
    SET queue = coalesce($3, queue), priority = coalesce($4, priority)
    WHERE id = ANY ($1::bigint[]) AND ($2::text IS NULL OR (SELECT by_id FROM seen) ->> id::text = state || ' ' || lease)
    RETURNING id
),
notified AS MATERIALIZED (SELECT awa.wake(array_agg(DISTINCT queue), NULL) FROM moved)
SELECT locked.id FROM locked CROSS JOIN notified
UNION ALL
SELECT id FROM moved_scheduled
