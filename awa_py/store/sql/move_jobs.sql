-- available, scheduled, retryable, waiting: into another queue, or to another priority, at the end of the line there, in
-- the order in which they stood. One that is there already keeps its place.
-- $1 ids · $2 states · $3 leases that they must have (both NULL: any) · $4 queue · $5 priority (each NULL: as it is)
-- Answers those that it found.
WITH wanted AS (SELECT * FROM unnest($1::bigint[], $2::text[], $3::int[]) AS w(job_id, in_state, with_lease)),
held AS MATERIALIZED (
    SELECT id, queue, priority, pos
    FROM awa.ready JOIN wanted ON id = job_id
    WHERE in_state IS NULL OR (in_state = 'available' AND lease = with_lease)
    ORDER BY id
    FOR UPDATE OF ready
),
placed AS MATERIALIZED (
    SELECT id, nextval('awa.pos') AS pos
    FROM (SELECT id FROM held
          WHERE (queue, priority) <> (coalesce($4, queue), coalesce($5::smallint, priority))
          ORDER BY priority, pos OFFSET 0) AS line
),
moved AS (
    UPDATE awa.ready
    SET queue = coalesce($4, queue), priority = coalesce($5, priority), pos = placed.pos, entered_at = now()
    FROM placed
    WHERE ready.id = placed.id
    RETURNING queue
),
later AS (
    UPDATE awa.scheduled
    SET queue = coalesce($4, queue), priority = coalesce($5, priority)
    FROM wanted
    WHERE id = job_id AND (in_state IS NULL OR (state = in_state AND lease = with_lease))
    RETURNING id
),
woken AS MATERIALIZED (SELECT awa.wake(array_agg(DISTINCT queue), NULL) FROM moved)
SELECT held.id FROM held CROSS JOIN woken
UNION ALL
SELECT id FROM later
