-- The leader: the last winner of the election, if its session holds the lock.
-- $1 the lock's key
SELECT worker_id, hostname, pid, epoch, elected_at, backend_pid
FROM awa.leader
WHERE backend_pid IN (SELECT awa.leader_lock_holders($1))
