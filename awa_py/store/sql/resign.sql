-- Gives the leader's lock back on the session that took it, and tells the candidates.
-- $1 the lock's key
SELECT pg_advisory_unlock($1), pg_notify('awa' || ':leader', 'resigned:')
