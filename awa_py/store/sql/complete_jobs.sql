-- running → completed, or deleted if the queue does not keep completed jobs. Lease and worker guard each row.
-- $1 ids and $2 leases, as the texts of arrays · $3 worker id · $4 results, JSON or NULL
-- $5 whether completed jobs are kept by default · $6 the number of ids
-- Returns the ids that the worker held, or NULL if it held all of them.
--
-- id = ANY always uses the primary key. A join with the arrays becomes a scan of the whole table for each element, if
-- the last vacuum saw an empty table. The other arrays are looked up by id.
WITH ended AS (
    DELETE FROM awa.running
    WHERE id = ANY ($1::text::bigint[])
      AND lease = ((SELECT jsonb_object($1::text::text[], $2::text::text[])) ->> id::text)::int
      AND worker_id = $3
    RETURNING *, (SELECT jsonb_object($1::text::text[], $4::text[])) ->> id::text AS result,
              parent_id IS NOT NULL  -- the parent may wait for its result
              OR CASE WHEN $5 THEN NOT EXISTS (SELECT FROM awa.queues
                                               WHERE name = running.queue AND completed_retention = '0')
                      ELSE EXISTS (SELECT FROM awa.queues
                                   WHERE name = running.queue AND completed_retention > '0') END AS is_kept
),
kept AS (
    INSERT INTO awa.completed ({carried}, run_at, errors, attempt, lease, worker_id, attempted_at, result)
    SELECT {carried}, run_at, errors, attempt, lease, worker_id, attempted_at, result::jsonb
    FROM ended
    WHERE is_kept
),
payloads AS (DELETE FROM awa.payloads WHERE job_id = ANY (ARRAY(SELECT id FROM ended WHERE args IS NULL AND NOT is_kept)))
SELECT CASE WHEN count(*) = $6 THEN NULL ELSE coalesce(array_agg(id), '{}') END AS ids FROM ended
