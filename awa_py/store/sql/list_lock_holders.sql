-- The sessions that hold the leader's lock. Any login can hold it without leading. A new leader writes its row right after
-- it got the lock, so for a moment it does not seem to lead.
-- $1 the lock's key · $2 how long a frozen leader must have been silent: see terminate_frozen_leader
SELECT pid, usename AS role, application_name,
       pid IS NOT DISTINCT FROM (SELECT backend_pid FROM awa.leader) AS leads,
       (wait_event_type = 'Client' AND state_change < clock_timestamp() - $2::interval) IS TRUE AS is_frozen
FROM pg_stat_activity
WHERE pid IN (SELECT awa.leader_lock_holders($1))
ORDER BY pid
