-- Makes a rate limit, its bucket full, or changes one: what is in the bucket stays, and so does the time for which
-- tokens were promised or withheld.
-- $1 name · $2 how many tokens come … · $3 … in that time · $4 burst
INSERT INTO awa.rate_limits AS old (name, count, period, burst, tokens)
VALUES ($1, $2, $3, $4::int, $4)
ON CONFLICT (name) DO UPDATE
SET (count, period, burst, tokens, refilled_at, updated_at) = (
    SELECT excluded.count, excluded.period, excluded.burst,
           CASE WHEN had.tokens >= 0 THEN least(excluded.burst, had.tokens)
                ELSE had.tokens * old.token_s * excluded.count / extract(epoch FROM excluded.period)::float8 END,
           had.at, had.at
    FROM (SELECT at, least(old.burst, old.tokens
                           + greatest(0, extract(epoch FROM at - old.refilled_at)::float8) / old.token_s) AS tokens
          FROM clock_timestamp() AS at) AS had
)
