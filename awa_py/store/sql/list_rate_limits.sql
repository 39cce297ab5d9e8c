-- The rate limits with their current tokens, and the seconds that a caller would wait for one token.
-- $1 name, NULL: all
SELECT name, count, period, token_s, burst, now.tokens, refilled_at, created_at, updated_at,
       greatest(0, 1 - now.tokens) * token_s AS wait_s
FROM awa.rate_limits AS kept,
     LATERAL (SELECT least(burst, kept.tokens + greatest(0, extract(epoch FROM clock_timestamp() - refilled_at)::float8)
                                  / token_s) AS tokens OFFSET 0) AS now
WHERE $1::text IS NULL OR name = $1
ORDER BY name
