-- waiting → available, for jobs whose awaited children have ended. Run it after the commit of the statement that ended a
-- child, and of the one that suspended the parent: the later one of the two sees that no child is left.
-- $1 ids of the parents
-- Returns the ids of the jobs that were woken.
--
-- A locked row is waited for, not skipped: another session may hold it that looked before the last child had ended.
WITH done AS MATERIALIZED (
    SELECT id FROM awa.scheduled
    WHERE id = ANY ($1::bigint[]) AND waits ? 'children'
      AND EXISTS (SELECT FROM jsonb_to_recordset(waits -> 'children') AS awaited(ids jsonb, fail_fast boolean)
                  WHERE awa.children_have_ended(scheduled.id, ids, fail_fast))
    ORDER BY id
    FOR UPDATE
),
deleted AS (
    DELETE FROM awa.scheduled WHERE id = ANY (ARRAY(SELECT id FROM done))
    RETURNING {carried}, errors, attempt, lease
),
inserted AS (
    INSERT INTO awa.ready ({carried}, run_at, errors, attempt, lease)
    SELECT {carried}, now(), errors, attempt, lease FROM deleted
),
notified AS MATERIALIZED (SELECT awa.wake(array_agg(DISTINCT queue), NULL) FROM deleted)
SELECT deleted.id FROM deleted CROSS JOIN notified
