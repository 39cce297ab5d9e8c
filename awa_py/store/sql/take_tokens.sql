-- Take tokens for callers in their order, as long as none has to wait for longer than the maximum. Tokens that are not
-- there yet are promised: the balance goes below zero, and the result says how long each caller has to wait. A
-- statement that waited for the row lock reads the row's latest version, and the clock after that.
-- $1 name · $2 tokens per caller · $3 number of callers · $4 maximum wait in seconds
-- Returns waits_s of the callers that were served, next_s of the next one, and fastest_s of a caller that finds the
-- bucket full.
WITH bucket AS MATERIALIZED (
    SELECT name, burst, token_s, tokens, refilled_at, clock_timestamp() AS asked_at
    FROM awa.rate_limits WHERE name = $1 FOR UPDATE
),
refilled AS (
    SELECT name, burst, token_s, asked_at,
           least(burst, tokens + greatest(0, extract(epoch FROM asked_at - refilled_at)::float8) / token_s) AS tokens
    FROM bucket
),
served AS MATERIALIZED (
    SELECT *, greatest(0, least($3::int, floor((tokens + $4::float8 / token_s) / $2::int)))::int AS callers
    FROM refilled
)
UPDATE awa.rate_limits
SET tokens = served.tokens - served.callers * $2::float8, refilled_at = served.asked_at
FROM served
WHERE rate_limits.name = served.name
RETURNING ARRAY(SELECT greatest(0, n * $2::float8 - served.tokens) * served.token_s
                FROM generate_series(1, served.callers) AS n ORDER BY n) AS waits_s,
          ((served.callers + 1) * $2::float8 - served.tokens) * served.token_s AS next_s,
          greatest(0, $2 - served.burst) * served.token_s AS fastest_s
