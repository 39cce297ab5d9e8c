-- Move jobs that are available, scheduled, retryable or waiting to another queue or priority. Available jobs go to the
-- end, in their order. A job that is already there keeps its position.
-- $1 ids · $2 states and $3 leases that the jobs must have (both NULL: any) · $4 queue · $5 priority (each NULL: no
-- change)
-- Returns the ids that were found.
WITH wanted AS (SELECT * FROM unnest($1::bigint[], $2::text[], $3::int[]) AS w(job_id, in_state, with_lease)),
locked AS MATERIALIZED (
    SELECT id, queue, priority, pos
    FROM awa.ready JOIN wanted ON id = job_id
    WHERE in_state IS NULL OR (in_state = 'available' AND lease = with_lease)
    ORDER BY id
    FOR UPDATE OF ready
),
positioned AS MATERIALIZED (
    SELECT id, nextval('awa.pos') AS pos
    FROM (SELECT id FROM locked
          WHERE (queue, priority) <> (coalesce($4, queue), coalesce($5::smallint, priority))
          ORDER BY priority, pos OFFSET 0) AS in_order
),
moved AS (
    UPDATE awa.ready
    SET queue = coalesce($4, queue), priority = coalesce($5, priority), pos = positioned.pos, entered_at = now()
    FROM positioned
    WHERE ready.id = positioned.id
    RETURNING queue
),
moved_scheduled AS (
    UPDATE awa.scheduled
    SET queue = coalesce($4, queue), priority = coalesce($5, priority)
    FROM wanted
    WHERE id = job_id AND (in_state IS NULL OR (state = in_state AND lease = with_lease))
    RETURNING id
),
notified AS MATERIALIZED (SELECT awa.wake(array_agg(DISTINCT queue), NULL) FROM moved)
SELECT locked.id FROM locked CROSS JOIN notified
UNION ALL
SELECT id FROM moved_scheduled
