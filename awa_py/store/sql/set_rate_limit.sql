-- Create a rate limit with a full bucket, or change one. On a change, the tokens stay; and if tokens were promised or
-- withheld, the time until they are there stays.
-- $1 name · $2 tokens that are added … · $3 … in this period · $4 burst
INSERT INTO awa.rate_limits AS old (name, count, period, burst, tokens)
VALUES ($1, $2, $3, $4::int, $4)
ON CONFLICT (name) DO UPDATE
SET (count, period, burst, tokens, refilled_at, updated_at) = (
    SELECT excluded.count, excluded.period, excluded.burst,
           CASE WHEN before.tokens >= 0 THEN least(excluded.burst, before.tokens)
                ELSE before.tokens * old.token_s * excluded.count / extract(epoch FROM excluded.period)::float8 END,
           before.at, before.at
    FROM (SELECT at, least(old.burst, old.tokens
                           + greatest(0, extract(epoch FROM at - old.refilled_at)::float8) / old.token_s) AS tokens
          FROM clock_timestamp() AS at) AS before
)
