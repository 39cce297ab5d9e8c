-- Write the new leader. Only the session that holds the lock may do this.
-- $1 worker id · $2 hostname · $3 pid
UPDATE awa.leader
SET worker_id = $1, hostname = $2, pid = $3, epoch = epoch % 9223372036854775807 + 1,
    elected_at = now(), backend_pid = pg_backend_pid()
RETURNING epoch
