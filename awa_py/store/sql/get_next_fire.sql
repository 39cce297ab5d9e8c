-- The seconds until a schedule fires: 0 if one is due or its time is not yet computed, no row if none will fire.
SELECT coalesce(extract(epoch FROM greatest(next_at - clock_timestamp(), '0'))::float8, 0) AS next_s
FROM awa.cron
WHERE enabled AND NOT paused
ORDER BY next_at NULLS FIRST
LIMIT 1
