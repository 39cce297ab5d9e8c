-- End the session of a leader that neither reads nor writes. PostgreSQL itself ends idle sessions; but a session that
-- froze between the messages of a statement counts as active, and no timeout of its own ends it. PostgreSQL never waits
-- this long for a live leader.
-- $1 the lock's key · $2 how long it must have been silent
SELECT pg_terminate_backend(activity.pid)
FROM pg_stat_activity activity
WHERE activity.pid IN (SELECT awa.leader_lock_holders($1))
  AND activity.wait_event_type = 'Client' AND activity.state_change < clock_timestamp() - $2::interval
