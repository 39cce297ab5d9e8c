-- A day (UTC) of which completed jobs are in the default partition; NULL: there is none.
SELECT (SELECT (finalized_at AT TIME ZONE 'UTC')::date FROM awa.completed_default LIMIT 1)
