-- failed, cancelled, completed → available with new attempts; scheduled, retryable → available with the attempts they
-- have. A deadline that has passed is removed: the operator decides. A finished job acquires its unique key again, and
-- is left alone if another job holds it. Of several jobs with the same key one is retried: the one that still holds it,
-- else the oldest.
-- $1 ids · $2 the state and the lease that each job must have, a JSON object: {"17": "available 0"} (NULL: any)
-- $3 whether to write the end of the last attempt and the retry as events
-- Returns the ids of the retried jobs.
WITH seen AS MATERIALIZED (SELECT $2::text::jsonb AS by_id),
-- Evaluated only if one of the jobs has a key. Keys are acquired in their order, as enqueue_many does it, so that two
-- callers cannot deadlock. A finished job does not keep others from its key: the last one in the order gets it.
keyed AS MATERIALIZED (
    SELECT id, unique_key, awa.reacquire_unique_key(unique_key, id) AS holder
    FROM (SELECT id, unique_key
          FROM (SELECT id, unique_key, state, lease FROM awa.dead
                UNION ALL SELECT id, unique_key, 'completed', lease FROM awa.completed) AS finished
          WHERE unique_key IS NOT NULL
            AND id = ANY ($1::bigint[]) AND ($2::text IS NULL OR (SELECT by_id FROM seen) ->> id::text = state || ' ' || lease)
          ORDER BY unique_key COLLATE "C", id DESC OFFSET 0) AS sorted
),
holders AS MATERIALIZED (SELECT min(id) AS id FROM keyed WHERE holder = id GROUP BY unique_key),
deleted_dead AS (
    DELETE FROM awa.dead
    WHERE id = ANY ($1::bigint[]) AND ($2::text IS NULL OR (SELECT by_id FROM seen) ->> id::text = state || ' ' || lease)
      AND (unique_key IS NULL OR id IN (SELECT id FROM holders))
    RETURNING {carried}, errors, lease, attempt, state, attempted_at, finalized_at, worker_id
),
deleted_completed AS (
    DELETE FROM awa.completed
    WHERE id = ANY ($1::bigint[]) AND ($2::text IS NULL OR (SELECT by_id FROM seen) ->> id::text = 'completed ' || lease)
      AND (unique_key IS NULL OR id IN (SELECT id FROM holders))
    RETURNING {carried}, errors, lease, attempt, 'completed' AS state, attempted_at, finalized_at, worker_id
),
deleted_finished AS (SELECT * FROM deleted_dead UNION ALL SELECT * FROM deleted_completed),
events AS (
    INSERT INTO awa.events (job_id, at, event, lease, attempt, began_at, worker_id, detail)
    SELECT deleted_finished.id, event.*
    FROM deleted_finished CROSS JOIN LATERAL (VALUES
        (finalized_at, state, lease, attempt, attempted_at, worker_id, NULL),
        (now(), 'requeued', lease, 0, NULL, NULL, 'by hand')) AS event
    WHERE $3
),
deleted_scheduled AS (
    DELETE FROM awa.scheduled
    WHERE state <> 'waiting'
      AND id = ANY ($1::bigint[]) AND ($2::text IS NULL OR (SELECT by_id FROM seen) ->> id::text = state || ' ' || lease)
    RETURNING {carried}, errors, lease, attempt
),
retried AS (
    SELECT {carried}, errors, lease, 0::smallint AS attempt, true AS finished FROM deleted_finished
    UNION ALL SELECT *, false FROM deleted_scheduled
),
inserted AS (
    INSERT INTO awa.ready ({carried without expires_at, rescues, progress}, expires_at, rescues, errors, lease, attempt)
    SELECT {carried without expires_at, rescues, progress}, CASE WHEN expires_at > now() THEN expires_at END,
           CASE WHEN finished THEN 0 ELSE rescues END, errors, lease, attempt
    FROM retried
),
notified AS MATERIALIZED (SELECT awa.wake(array_agg(DISTINCT queue), NULL) FROM retried)
SELECT retried.id FROM retried CROSS JOIN notified
