"""The leader: one session that holds the advisory lock, and the maintenance tasks that run on it.

    candidate ── wins the lock ──► leader ── resigns, or its session ends ──► candidate

The leader runs all tasks in one loop, on the session that holds the lock. If the leader freezes or is cut off,
PostgreSQL ends its session (idle_session_timeout, TCP keepalives). The lock is free then, and the old leader can write
nothing more: when it wakes up, it finds a dead connection and becomes a candidate again.

To add a task, write its function (one bounded batch, a TaskResult) and its SQL, and add a line to `tasks.py`.
"""
