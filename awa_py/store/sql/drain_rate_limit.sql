-- Take all tokens of a rate limit, and those that are added within a period. Tokens that were promised stay promised.
-- $1 name · $2 the period in which nothing is granted; NULL: take only the tokens that are there
-- Returns the name, or no row if it does not exist.
UPDATE awa.rate_limits AS old
SET (tokens, refilled_at, updated_at) = (
    SELECT least(0, old.tokens + greatest(0, extract(epoch FROM at - old.refilled_at)::float8) / old.token_s,
                 -extract(epoch FROM $2::interval)::float8 / old.token_s), at, at
    FROM clock_timestamp() AS at
)
WHERE name = $1
RETURNING name
