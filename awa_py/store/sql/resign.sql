-- Release the leader's lock in the session that acquired it, and notify the candidates.
-- $1 the lock's key
SELECT pg_advisory_unlock($1), pg_notify('awa' || ':leader', 'resigned:')
