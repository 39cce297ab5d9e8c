-- Takes tokens for callers in their order, as far as none of them has to wait for longer than the patience. Tokens that
-- have yet to come are promised: the balance goes below zero, and the answer says how long each caller has to wait.
-- Whoever waits here for the row's lock reads its last version, and the clock after that.
-- $1 name · $2 how many tokens each caller wants · $3 how many callers · $4 patience in seconds
-- waits_s: of those who were served · next_s: of the one after them · fastest_s: of one who finds the bucket full
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
