-- How many seconds until the next schedule fires (NULL: none will).
SELECT extract(epoch FROM min(next_at) - clock_timestamp())::float8
FROM awa.cron
WHERE enabled AND NOT paused
