-- Takes the leader's lock for this session, where it is free.
-- $1 the lock's key
SELECT pg_try_advisory_lock($1)
