-- available, scheduled, retryable, waiting → cancelled; a running job is marked, and its worker told.
-- $1 ids
-- Answers, for each that it found unfinished: cancelled, or requested.
WITH ready AS (
    DELETE FROM awa.ready WHERE id = ANY ($1::bigint[]) RETURNING {carried}, run_at, errors, attempt, lease
),
later AS (
    DELETE FROM awa.scheduled WHERE id = ANY ($1::bigint[]) RETURNING {carried}, run_at, errors, attempt, lease
),
stopped AS (SELECT * FROM ready UNION ALL SELECT * FROM later),
buried AS (
    INSERT INTO awa.dead (state, {carried}, run_at, errors, attempt, lease)
    SELECT 'cancelled', {carried}, run_at, awa.with_error(errors, attempt, 'cancelled by user'), attempt, lease
    FROM stopped
),
asked AS (
    UPDATE awa.running SET cancel_requested_at = coalesce(cancel_requested_at, now())
    WHERE id = ANY ($1::bigint[])
    RETURNING id, lease
),
told AS MATERIALIZED (SELECT id, pg_notify('awa', 'cancel:' || id || ':' || lease) FROM asked)
SELECT id, 'cancelled' AS answer FROM stopped
UNION ALL
SELECT id, 'requested' FROM told
