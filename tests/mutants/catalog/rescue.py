"""Mistakes in the rescue of running jobs."""

from tests.mutants.mutant import BASELINE, INTEGRATION, SQL, Mutant, ignored

MUTANTS = (
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
        new="    LIMIT $1::bigint * 1000\n",
        tests=(INTEGRATION + "test_rescue.py",),
    ),
    Mutant(
        name="rescue-of-workers-with-a-session",
        file=SQL + "rescue_lost_jobs.sql",
        old="AND NOT EXISTS (SELECT FROM pg_locks",
        new="AND (SELECT true) OR EXISTS (SELECT FROM pg_locks",
        tests=(INTEGRATION + "test_rescue_gone_workers.py",),
    ),
    Mutant(
        name="rescue-of-silence-before-the-election",
        file=SQL + "rescue_stale_jobs.sql",
        old="\n           OR $3 >= coalesce(q.staleness, $1::interval)\n",
        new="\n           OR true\n",
        tests=(INTEGRATION + "test_rescue.py",),
    ),
    Mutant(
        name="deadlines-of-silence-before-the-election",
        file="awa_py/maintenance/rescue.py",
        old="if watch is None or (await watch.sees(session) and watch.duration >= staleness):",
        new="if True:",
        tests=(INTEGRATION + "test_rescue.py",),
    ),
    Mutant(
        name="silence-while-commits-hang",
        file="awa_py/maintenance/rescue.py",
        old="if time.monotonic() - began_at <= MAX_COMMIT_S:",
        new="if True:",
        tests=(INTEGRATION + "test_rescue.py",),
    ),
    Mutant(
        name="rescue-of-keyed-jobs-of-a-lost-session",
        file=SQL + "rescue_lost_jobs.sql",
        old="\n      AND r.concurrency_key IS NULL",
        new="",
        tests=(INTEGRATION + "test_rescue_gone_workers.py",),
    ),
    Mutant(
        name="rescue-of-workers-of-a-restarted-server",
        file=SQL + "rescue_lost_jobs.sql",
        old="\n      AND w.locked_on = pg_postmaster_start_time()",
        new="",
        tests=(INTEGRATION + "test_rescue_gone_workers.py",),
    ),
    Mutant(
        name="rescue-that-is-not-counted",
        file=BASELINE + "10_failed_attempts.sql",
        old="        SELECT 'retryable', {carried without rescues}, least(rescues + crashed::int, 32766)",
        new="        SELECT 'retryable', {carried without rescues}, least(rescues, 32766)",
        tests=(INTEGRATION + "test_rescue.py",),
    ),
    Mutant(
        name="rescue-without-a-wait",
        file=BASELINE + "10_failed_attempts.sql",
        old="CASE WHEN holder IS NULL THEN 1 ELSE 0 END))",
        new="0))",
        tests=(INTEGRATION + "test_rescue.py",),
    ),
    Mutant(
        name="take-over-of-the-last-attempt",
        file=SQL + "take_over_jobs.sql",
        old="stale.attempt < stale.max_attempts AND ",
        new="",
        tests=(INTEGRATION + "test_claim.py", INTEGRATION + "test_rescue.py", INTEGRATION + "test_claim_loop.py"),
    ),
    Mutant(
        name="take-over-without-a-leader",
        file=SQL + "take_over_jobs.sql",
        old="\n      AND (SELECT backend_pid FROM awa.leader) IN (SELECT awa.leader_lock_holders($6))",
        new=ignored("\n      AND (SELECT backend_pid FROM awa.leader) IN (SELECT awa.leader_lock_holders($6))"),
        tests=(INTEGRATION + "test_claim.py", INTEGRATION + "test_rescue.py", INTEGRATION + "test_claim_loop.py"),
    ),
)
