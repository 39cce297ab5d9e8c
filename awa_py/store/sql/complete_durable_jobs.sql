-- running → completed for jobs that have checkpoints: these move into the row of the job. Lease and worker guard each row.
-- $1 ids · $2 leases · $3 worker id · $4 results, JSON or NULL · $5 whether completed jobs are kept by default
-- Returns the ids that the worker held.
WITH ended AS (
    DELETE FROM awa.running
    WHERE id = ANY ($1::bigint[])
      AND lease = ((SELECT jsonb_object($1::bigint[]::text[], $2::int[]::text[])) ->> id::text)::int
      AND worker_id = $3
    RETURNING *, (SELECT jsonb_object($1::bigint[]::text[], $4::text[])) ->> id::text AS result,
              parent_id IS NOT NULL  -- the parent may wait for its result
              OR CASE WHEN $5 THEN NOT EXISTS (SELECT FROM awa.queues
                                               WHERE name = running.queue AND completed_retention = '0')
                      ELSE EXISTS (SELECT FROM awa.queues
                                   WHERE name = running.queue AND completed_retention > '0') END AS is_kept
),
remembered AS (
    DELETE FROM awa.checkpoints WHERE job_id = ANY (ARRAY(SELECT id FROM ended))
    RETURNING *
),
unread AS (DELETE FROM awa.signals WHERE job_id = ANY (ARRAY(SELECT id FROM ended))),
results AS (DELETE FROM awa.kept_results WHERE parent_id = ANY (ARRAY(SELECT id FROM ended))),
keys AS (DELETE FROM awa.signal_keys WHERE job_id = ANY (ARRAY(SELECT id FROM ended))),
folded AS MATERIALIZED (
    SELECT jsonb_object_agg(job_id, list) AS by_job
    FROM (SELECT job_id, json_agg(row_to_json(remembered) ORDER BY number)::text AS list FROM remembered GROUP BY job_id) AS lists
),
kept AS (
    INSERT INTO awa.completed ({carried}, run_at, errors, attempt, lease, worker_id, attempted_at, result, checkpoints)
    SELECT {carried}, run_at, errors, attempt, lease, worker_id, attempted_at, result::jsonb,
           ((SELECT by_job FROM folded) ->> id::text)::json
    FROM ended
    WHERE is_kept
),
payloads AS (DELETE FROM awa.payloads WHERE job_id = ANY (ARRAY(SELECT id FROM ended WHERE args IS NULL AND NOT is_kept)))
SELECT id FROM ended
