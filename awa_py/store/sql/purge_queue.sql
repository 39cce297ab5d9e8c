-- Delete the available, scheduled and retryable jobs of a queue, with what they remember. Bounded.
-- $1 queue · $2 at most this many of each table, and of jobs with a concurrency key
WITH ready AS (
    DELETE FROM awa.ready
    WHERE ctid = ANY (ARRAY(SELECT ctid FROM awa.ready WHERE queue = $1 AND concurrency_key IS NULL
                            LIMIT $2 FOR UPDATE SKIP LOCKED)
                      || ARRAY(SELECT ctid FROM awa.ready WHERE queue = $1 AND concurrency_key IS NOT NULL
                               LIMIT $2 FOR UPDATE SKIP LOCKED))
    RETURNING id, lease
),
scheduled AS (
    DELETE FROM awa.scheduled
    WHERE ctid = ANY (ARRAY(SELECT ctid FROM awa.scheduled WHERE queue = $1 AND state <> 'waiting'
                            LIMIT $2 FOR UPDATE SKIP LOCKED))
    RETURNING id, lease
),
deleted AS (SELECT * FROM ready UNION ALL SELECT * FROM scheduled),
payloads AS (DELETE FROM awa.payloads WHERE job_id = ANY (ARRAY(SELECT id FROM deleted))),
remembered AS (DELETE FROM awa.checkpoints WHERE job_id = ANY (ARRAY(SELECT id FROM deleted WHERE lease > 0))),
results AS (DELETE FROM awa.kept_results WHERE parent_id = ANY (ARRAY(SELECT id FROM deleted WHERE lease > 0))),
signalled AS (DELETE FROM awa.signals WHERE job_id = ANY (ARRAY(SELECT id FROM deleted))),
signal_keys AS (DELETE FROM awa.signal_keys WHERE job_id = ANY (ARRAY(SELECT id FROM deleted)))
SELECT count(*) AS deleted FROM deleted
