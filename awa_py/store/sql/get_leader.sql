-- The leader: the last winner of the election, if the lock is held.
-- $1 the lock's key
SELECT worker_id, hostname, pid, epoch, elected_at
FROM awa.leader
WHERE EXISTS (
    SELECT FROM pg_locks
    WHERE locktype = 'advisory' AND granted AND objsubid = 1
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND (classid::bigint << 32 | objid::bigint) = $1
)
