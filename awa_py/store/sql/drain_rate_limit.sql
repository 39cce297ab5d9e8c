-- Takes all tokens of a rate limit, and those that would come within a time. What was promised before stays so.
-- $1 name · $2 for how long nothing is to be granted, NULL: only what is there is taken
UPDATE awa.rate_limits AS old
SET (tokens, refilled_at, updated_at) = (
    SELECT least(0, old.tokens + greatest(0, extract(epoch FROM at - old.refilled_at)::float8) / old.token_s,
                 -extract(epoch FROM $2::interval)::float8 / old.token_s), at, at
    FROM clock_timestamp() AS at
)
WHERE name = $1
RETURNING name
