-- Write a schedule that an app declares, unless a newer version of the app did, or an operator set it. A version is older
-- if it once declared the schedule and was replaced. Otherwise the same as upsert_schedule.
-- $1 name · $2 expression · $3 timezone · $4 kind · $5 args · $6 options · $7 misfire · $8 the app's version
-- $9 boolean: make this version the newest
-- Returns whether it was written, whether another declaration holds instead, and its version, NULL: an operator's.
WITH written AS (
    INSERT INTO awa.cron AS old (name, expression, timezone, kind, args, options, misfire, version)
    VALUES ($1, $2, $3, $4, $5::text::jsonb, $6::text::jsonb, $7, $8::text)
    ON CONFLICT (name) DO UPDATE SET
        expression = excluded.expression, timezone = excluded.timezone, kind = excluded.kind, args = excluded.args,
        options = excluded.options, misfire = excluded.misfire, enabled = true, last_error = NULL, updated_at = now(),
        next_at = NULL, version = excluded.version,
        replaced_versions = awa.replace_version(old.replaced_versions, old.version, excluded.version),
        effective_from = CASE WHEN (old.expression, old.timezone) = (excluded.expression, excluded.timezone)
                              THEN old.effective_from ELSE least(now(), old.next_at - interval '1 microsecond') END
    WHERE old.version IS NOT NULL AND ($9::boolean OR excluded.version <> ALL (old.replaced_versions))
      AND (old.expression, old.timezone, old.kind, old.args, old.options, old.misfire, old.version)
          IS DISTINCT FROM
          (excluded.expression, excluded.timezone, excluded.kind, excluded.args, excluded.options, excluded.misfire,
           excluded.version)
    RETURNING name
),
notified AS MATERIALIZED (
    SELECT count(pg_notify('awa' || ':leader', 'cron:' || name)) > 0 AS is_written FROM written
)
SELECT is_written,
       NOT is_written AND (expression, timezone, kind, args, options, misfire)
           IS DISTINCT FROM ($2, $3, $4, $5::text::jsonb, $6::text::jsonb, $7) AS is_overruled,
       version
FROM notified LEFT JOIN awa.cron ON name = $1
