-- Acquire the leader's lock for this session if it is free.
-- $1 the lock's key
SELECT pg_try_advisory_lock($1) AS leads
