"""The mistakes, with the tests that have to notice them. Each is one that a plausible edit could make."""

from dataclasses import dataclass

SQL = "awa_py/store/sql/"
INTEGRATION = "tests/integration/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A mistake: in `file`, `old`, which occurs there once, becomes `new`."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def plant(self, text: str) -> str:
        """Return the file's text with the mistake."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: {self.file} has {text.count(self.old)} times {self.old!r} instead of once")
        return text.replace(self.old, self.new)


GUARD = "\n      AND lease = ((SELECT jsonb_object($1::bigint[]::text[], $2::int[]::text[])) ->> id::text)::int"
WORKER_GUARD = "\n      AND worker_id = $3"

MUTANTS = (
    # The guard: only the attempt that holds the lease may change the job.
    Mutant(
        name="complete-without-lease",
        file=SQL + "complete_jobs.sql",
        old="\n      AND lease = ((SELECT jsonb_object($1::text::text[], $2::text::text[])) ->> id::text)::int",
        new="",
        tests=(INTEGRATION + "test_finish.py::TestGuards",),
    ),
    Mutant(
        name="complete-without-worker",
        file=SQL + "complete_jobs.sql",
        old=WORKER_GUARD,
        new="",
        tests=(INTEGRATION + "test_finish.py::TestGuards",),
    ),
    Mutant(
        name="snooze-without-lease",
        file=SQL + "snooze_jobs.sql",
        old=GUARD,
        new="",
        tests=(INTEGRATION + "test_finish.py::TestGuards",),
    ),
    Mutant(
        name="release-without-worker",
        file=SQL + "release_jobs.sql",
        old=WORKER_GUARD,
        new="",
        tests=(INTEGRATION + "test_finish.py::TestGuards",),
    ),
    Mutant(
        name="discard-without-lease",
        file=SQL + "discard_jobs.sql",
        old=GUARD,
        new="",
        tests=(INTEGRATION + "test_finish.py::TestGuards",),
    ),
    Mutant(
        name="throttle-without-lease",
        file=SQL + "throttle_jobs.sql",
        old=GUARD,
        new="",
        tests=(INTEGRATION + "test_finish.py::TestGuards",),
    ),
    Mutant(
        name="progress-without-lease",
        file=SQL + "update_progress.sql",
        old="\n  AND lease = ((SELECT jsonb_object($1::bigint[]::text[], $2::int[]::text[])) ->> id::text)::int",
        new="",
        tests=(INTEGRATION + "test_finish.py::TestGuards",),
    ),
    Mutant(
        name="renew-without-lease",
        file=SQL + "renew_leases.sql",
        old="\n  AND lease = ((SELECT jsonb_object($1::bigint[]::text[], $2::int[]::text[])) ->> id::text)::int",
        new="",
        tests=(INTEGRATION + "test_finish.py::TestGuards", INTEGRATION + "test_worker_heartbeat.py"),
    ),
    Mutant(
        name="fail-without-worker",
        file="schema/0001_baseline/10_failed_attempts.sql",
        old=" AND (holder IS NULL OR worker_id = holder)",
        new="",
        tests=(INTEGRATION + "test_finish.py::TestGuards",),
    ),
    Mutant(
        name="attempts-without-end",
        file="schema/0001_baseline/10_failed_attempts.sql",
        old="attempt < max_attempts AND",
        new="attempt <= max_attempts AND",
        tests=(INTEGRATION + "test_finish.py::TestFail",),
    ),
    # The claim.
    Mutant(
        name="claim-waits-for-locked-rows",
        file=SQL + "claim_jobs.sql",
        old="            FOR UPDATE SKIP LOCKED",
        new="            FOR UPDATE",
        tests=(INTEGRATION + "test_claim.py::TestConcurrentClaims",),
    ),
    Mutant(
        name="claim-keeps-the-lease",
        file=SQL + "claim_jobs.sql",
        old="SELECT {carried}, run_at, errors, attempt + 1, lease + 1, $6,",
        new="SELECT {carried}, run_at, errors, attempt + 1, lease, $6,",
        tests=(INTEGRATION + "test_claim.py::TestClaimedRow",),
    ),
    Mutant(
        name="claim-of-expired-jobs",
        file=SQL + "claim_jobs.sql",
        old="\n              AND (expires_at IS NULL OR expires_at > now())",
        new="",
        tests=(INTEGRATION + "test_claim.py::TestSelection",),
    ),
    Mutant(
        name="claim-from-a-paused-queue",
        file=SQL + "claim_jobs.sql",
        old="(paused AND paused_until > now() IS NOT FALSE) OR ",
        new="",
        tests=(INTEGRATION + "test_claim.py::TestSelection",),
    ),
    Mutant(
        name="claim-view-after-the-query",
        file="awa_py/worker/claiming/claim_loop.py",
        old="self._start(claimer.queue, rows, began)",
        new="self._start(claimer.queue, rows, time.monotonic())",
        tests=(INTEGRATION + "test_worker_heartbeat.py",),
    ),
    Mutant(
        name="renewal-view-after-the-query",
        file="awa_py/worker/heartbeat.py",
        old="            job.renewed_at = now\n",
        new="            job.renewed_at = time.monotonic()\n",
        tests=(INTEGRATION + "test_worker_heartbeat.py",),
    ),
    Mutant(
        name="no-backoff-after-a-failed-claim",
        file="awa_py/worker/claiming/claim_loop.py",
        old="await asyncio.sleep(FAILED_CLAIM_DELAYS_S[min(failures, len(FAILED_CLAIM_DELAYS_S) - 1)])",
        new="await asyncio.sleep(0)",
        tests=(INTEGRATION + "test_claim_loop.py", INTEGRATION + "test_worker_connections.py"),
    ),
    Mutant(
        name="orphans-stay",
        file="awa_py/worker/claiming/claim_loop.py",
        old="            await self._release_orphans(await self._session())\n        if not",
        new="            pass\n        if not",
        tests=(
            INTEGRATION + "test_claim.py",
            INTEGRATION + "test_claim_loop.py",
            INTEGRATION + "test_worker_connections.py",
        ),
    ),
    Mutant(
        name="handler-told-twice",
        file="awa_py/worker/claimed_job.py",
        old="        if self.stop is not None and reason is not StopReason.SHUTDOWN:\n            return\n",
        new="",
        tests=(INTEGRATION + "test_worker_interruption.py", INTEGRATION + "test_worker_heartbeat.py"),
    ),
    Mutant(
        name="unbounded-event-buffer",
        file="awa_py/worker/event_log.py",
        old="max(0, MAX_BUFFERED - self._being_written - len(self._buffer))",
        new="len(job_events)",
        tests=(INTEGRATION + "test_event_log.py::TestBuffer",),
    ),
    # The cursor.
    Mutant(
        name="cursor-without-slack",
        file="awa_py/worker/claiming/queue_claimer.py",
        old="POSITION_SLACK = 1_000",
        new="POSITION_SLACK = 0",
        tests=(INTEGRATION + "test_claim_cursor.py", INTEGRATION + "test_claim_simulation.py"),
    ),
    Mutant(
        name="cursor-without-full-scans",
        file="awa_py/store/full_scan.py",
        old="return now >= self._due_at or (self.found_too_little and now >= self.allowed_at)",
        new="return now >= self._due_at and self._due_at == 0.0",
        tests=("tests/unit/test_full_scan.py",),
    ),
    Mutant(
        name="cursor-that-goes-back",
        file="awa_py/worker/claiming/queue_claimer.py",
        old='max(self._claimed_up_to[level], row["pos"])',
        new='row["pos"]',
        tests=(INTEGRATION + "test_claim_cursor.py", INTEGRATION + "test_claim_simulation.py"),
    ),
    Mutant(
        name="promotion-forgets-the-last-second",
        file=SQL + "promote_jobs.sql",
        old="now() - interval '1 second') AS settled_until",
        new="now()) AS settled_until",
        tests=(INTEGRATION + "test_promote.py",),
    ),
    # The election.
    Mutant(
        name="frozen-leader-stays",
        file="awa_py/maintenance/election.py",
        old='        "idle_session_timeout": timeout_ms,\n',
        new="",
        tests=(INTEGRATION + "test_election.py",),
    ),
    Mutant(
        name="no-server-keepalive",
        file="awa_py/db/database.py",
        old="**ISOLATION_SETTINGS, **SERVER_KEEPALIVE_SETTINGS, ",
        new="**ISOLATION_SETTINGS, ",
        tests=(INTEGRATION + "test_worker_connections.py",),
    ),
    Mutant(
        name="no-termination-listener",
        file="awa_py/maintenance/election.py",
        old="        session.connection.add_termination_listener(lambda _: loop.handle_session_end())\n",
        new="",
        tests=(INTEGRATION + "test_election.py",),
    ),
    Mutant(
        name="epoch-stays",
        file=SQL + "record_election.sql",
        old="epoch = epoch % 9223372036854775807 + 1",
        new="epoch = epoch",
        tests=(INTEGRATION + "test_election.py",),
    ),
    Mutant(
        name="silent-resignation",
        file=SQL + "resign.sql",
        old=", pg_notify('awa' || ':leader', 'resigned:')",
        new="",
        tests=(INTEGRATION + "test_election.py",),
    ),
    Mutant(
        name="no-cron-sync-at-election",
        file="awa_py/maintenance/election.py",
        old="                            await sync(session, self._schedules)\n",
        new="",
        tests=(INTEGRATION + "test_election.py", INTEGRATION + "test_cron.py"),
    ),
    Mutant(
        name="no-turns-between-tasks",
        file="awa_py/maintenance/loop.py",
        old="            entry.due_at = ended_at\n",
        new="            entry.due_at = 0.0\n",
        tests=("tests/unit/test_maintenance_loop.py",),
    ),
    # The rescue.
    Mutant(
        name="deadline-rescue-waits-for-locked-rows",
        file=SQL + "rescue_overdue_jobs.sql",
        old="FOR UPDATE SKIP LOCKED",
        new="FOR UPDATE",
        tests=(INTEGRATION + "test_rescue.py",),
    ),
    Mutant(
        name="stale-rescue-waits-for-locked-rows",
        file=SQL + "rescue_stale_jobs.sql",
        old="FOR UPDATE OF r SKIP LOCKED",
        new="FOR UPDATE OF r",
        tests=(INTEGRATION + "test_rescue.py",),
    ),
    Mutant(
        name="rescue-of-live-jobs",
        file=SQL + "rescue_stale_jobs.sql",
        old="\n      AND r.heartbeat_at < now() - coalesce(q.staleness, $1::interval)",
        new="",
        tests=(INTEGRATION + "test_rescue.py",),
    ),
    Mutant(
        name="unbounded-rescue",
        file=SQL + "rescue_overdue_jobs.sql",
        old="    LIMIT $1\n",
        new="    LIMIT $1 * 1000\n",
        tests=(INTEGRATION + "test_rescue.py",),
    ),
    Mutant(
        name="rescue-of-workers-with-a-session",
        file=SQL + "rescue_lost_jobs.sql",
        old="AND NOT EXISTS (SELECT FROM pg_locks",
        new="AND (SELECT true) OR EXISTS (SELECT FROM pg_locks",
        tests=(INTEGRATION + "test_rescue_gone_workers.py",),
    ),
    # Cleanup.
    Mutant(
        name="unbounded-cleanup",
        file="awa_py/maintenance/cleanup.py",
        old="limit = ROWS_PER_BATCH",
        new="limit = 1_000_000_000",
        tests=(INTEGRATION + "test_cleanup.py",),
    ),
    Mutant(
        name="unbounded-cleanup-of-completed-jobs",
        file=SQL + "delete_completed_jobs.sql",
        old="SELECT * FROM uncovered LIMIT $2) AS old",
        new="SELECT * FROM uncovered) AS old",
        tests=(INTEGRATION + "test_cleanup.py",),
    ),
    Mutant(
        name="cleanup-of-held-unique-keys",
        file=SQL + "delete_free_unique_keys.sql",
        old="OR NOT EXISTS",
        new="OR EXISTS",
        tests=(INTEGRATION + "test_cleanup.py",),
    ),
    # Cron's compare-and-swap.
    Mutant(
        name="fire-without-compare",
        file=SQL + "fire_schedule.sql",
        old=" AND last_enqueued_at IS NOT DISTINCT FROM $2::timestamptz",
        new="",
        tests=(INTEGRATION + "test_cron.py",),
    ),
    Mutant(
        name="fire-of-an-old-expression",
        file=SQL + "fire_schedule.sql",
        old="\n      AND expression = $6 AND timezone = $7",
        new="",
        tests=(INTEGRATION + "test_cron.py",),
    ),
    Mutant(
        name="fire-of-a-paused-schedule",
        file=SQL + "fire_schedule.sql",
        old=" AND NOT paused",
        new="",
        tests=(INTEGRATION + "test_cron.py",),
    ),
    Mutant(
        name="new-expression-fires-for-the-past",
        file=SQL + "declare_schedule.sql",
        old="THEN old.effective_from ELSE least(now(), old.next_at - interval '1 microsecond') END",
        new="THEN old.effective_from ELSE old.effective_from END",
        tests=(INTEGRATION + "test_cron.py",),
    ),
)
