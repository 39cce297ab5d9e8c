"""The leader: one session that holds the lock, and the tasks that it runs.

    candidate ── lock won ──► leader ── resigns, or its session dies ──► candidate
        ▲                        │
        └── every second ────────┘   one loop, one table of tasks, all SQL on the session that holds the lock

A leader that is frozen or cut off loses its session: PostgreSQL ends it (idle_session_timeout, TCP keepalives), and
with it go the lock and the power to write. Whoever wakes up after that finds a dead connection, and stands again.
"""
