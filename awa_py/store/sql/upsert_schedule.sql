-- Create or change a schedule of an operator, unless an app declares one of this name. `paused` stays, and an unchanged
-- schedule is not written. A new expression or timezone counts from now on, or from a fire time that is still pending,
-- and enables a schedule that was disabled.
-- $1 name · $2 expression · $3 timezone · $4 kind · $5 args · $6 options · $7 misfire
-- Returns whether it was written, and the version of the app that declares it instead.
WITH written AS (
    INSERT INTO awa.cron AS old (name, expression, timezone, kind, args, options, misfire)
    VALUES ($1, $2, $3, $4, $5::text::jsonb, $6::text::jsonb, $7)
    ON CONFLICT (name) DO UPDATE SET
        expression = excluded.expression, timezone = excluded.timezone, kind = excluded.kind, args = excluded.args,
        options = excluded.options, misfire = excluded.misfire, enabled = true, last_error = NULL, updated_at = now(),
        next_at = NULL,
        effective_from = CASE WHEN (old.expression, old.timezone) = (excluded.expression, excluded.timezone)
                              THEN old.effective_from ELSE least(now(), old.next_at - interval '1 microsecond') END
    WHERE old.version IS NULL
      AND (old.expression, old.timezone, old.kind, old.args, old.options, old.misfire)
          IS DISTINCT FROM
          (excluded.expression, excluded.timezone, excluded.kind, excluded.args, excluded.options, excluded.misfire)
    RETURNING name
)
SELECT count(pg_notify('awa' || ':leader', 'cron:' || name)) > 0 AS is_written,
       (SELECT version FROM awa.cron WHERE name = $1) AS version
FROM written
