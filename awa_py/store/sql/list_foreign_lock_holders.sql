-- The sessions that hold the leader's lock although they do not lead. A new leader writes its row right after it got the
-- lock, so it can be one of them for a moment.
-- $1 the lock's key
SELECT pid, usename AS role, application_name
FROM pg_stat_activity
WHERE pid IN (SELECT awa.leader_lock_holders($1))
  AND pid IS DISTINCT FROM (SELECT backend_pid FROM awa.leader)
ORDER BY pid
