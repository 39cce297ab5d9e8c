-- How many seconds until the next schedule fires: 0 where one is due or not worked out yet (NULL: none will fire).
SELECT coalesce(extract(epoch FROM greatest(next_at - clock_timestamp(), '0'))::float8, 0)
FROM awa.cron
WHERE enabled AND NOT paused
ORDER BY next_at NULLS FIRST
LIMIT 1
