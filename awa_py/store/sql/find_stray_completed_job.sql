-- A day (UTC) on which jobs completed that had no partition then; NULL: none did.
SELECT (SELECT (finalized_at AT TIME ZONE 'UTC')::date FROM awa.completed_default LIMIT 1)
