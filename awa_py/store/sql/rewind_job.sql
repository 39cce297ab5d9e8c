-- failed, cancelled, completed, scheduled, retryable, waiting → available with new attempts, without the checkpoints from a
-- number on. The checkpoints of a completed job move from its row back into their table. An available job stays where it
-- is. A running job is left alone, as is one whose unique key another job holds. The lease guards the job: only attempts
-- write checkpoints, so the caller has read those that are there.
-- $1 id · $2 lease · $3 number of the first checkpoint to forget · $4 what the event says
-- $5 whether to write the end of the last attempt and the rewind as events
-- Returns the id if the job was rewound.
WITH key AS MATERIALIZED (
    SELECT awa.reacquire_unique_key(unique_key, id) AS holder
    FROM (SELECT id, unique_key, lease FROM awa.dead UNION ALL SELECT id, unique_key, lease FROM awa.completed) AS finished
    WHERE id = $1 AND lease = $2 AND unique_key IS NOT NULL
),
deleted_dead AS (
    DELETE FROM awa.dead
    WHERE id = $1 AND lease = $2 AND (unique_key IS NULL OR id = (SELECT holder FROM key))
    RETURNING {carried}, errors, lease, attempt, state, attempted_at, finalized_at, worker_id, NULL::json AS checkpoints
),
deleted_completed AS (
    DELETE FROM awa.completed
    WHERE id = $1 AND lease = $2 AND (unique_key IS NULL OR id = (SELECT holder FROM key))
    RETURNING {carried}, errors, lease, attempt, 'completed' AS state, attempted_at, finalized_at, worker_id, checkpoints
),
finished AS (SELECT * FROM deleted_dead UNION ALL SELECT * FROM deleted_completed),
deleted_scheduled AS (
    DELETE FROM awa.scheduled WHERE id = $1 AND lease = $2
    RETURNING {carried}, errors, lease
),
updated_ready AS (UPDATE awa.ready SET attempt = 0, rescues = 0 WHERE id = $1 AND lease = $2 RETURNING id, lease),
moved AS (SELECT {carried}, errors, lease FROM finished UNION ALL SELECT * FROM deleted_scheduled),
inserted AS (
    INSERT INTO awa.ready ({carried without expires_at, rescues, progress}, expires_at, errors, lease)
    SELECT {carried without expires_at, rescues, progress}, CASE WHEN expires_at > now() THEN expires_at END, errors, lease
    FROM moved
),
rewound AS (SELECT id, lease FROM moved UNION ALL SELECT id, lease FROM updated_ready),
forgotten AS (
    DELETE FROM awa.checkpoints WHERE job_id = $1 AND number >= $3 AND EXISTS (SELECT FROM rewound)
),
unfolded AS (
    INSERT INTO awa.checkpoints (job_id, name, number, type, is_open, lease, tries, took_s, recorded_at, until, digest, result, error)
    SELECT $1, kept.name, kept.number, kept.type, kept.is_open, kept.lease, kept.tries, kept.took_s, kept.recorded_at, kept.until,
           kept.digest, kept.result, kept.error
    FROM finished CROSS JOIN LATERAL json_populate_recordset(NULL::awa.checkpoints, finished.checkpoints) AS kept
    WHERE kept.number < $3
),
events AS (
    INSERT INTO awa.events (job_id, at, event, lease, attempt, began_at, worker_id, detail)
    SELECT id, finalized_at, state, lease, attempt, attempted_at, worker_id, NULL FROM finished WHERE $5
    UNION ALL
    SELECT id, now(), 'rewound', lease, 0, NULL, NULL, $4::text FROM rewound WHERE $5
),
notified AS MATERIALIZED (SELECT awa.wake(array_agg(DISTINCT queue), NULL) FROM moved)
SELECT rewound.id FROM rewound CROSS JOIN notified
