"""Mistakes in the guard: only the attempt that holds the lease may change the job."""

from tests.mutants.mutant import BASELINE, INTEGRATION, SQL, Mutant, ignored

GUARD = "AND lease = ((SELECT jsonb_object($1::bigint[]::text[], $2::int[]::text[])) ->> id::text)::int"
COMPLETION_GUARD = "AND lease = ((SELECT jsonb_object($1::text::text[], $2::text::text[])) ->> id::text)::int"
WORKER_GUARD = "AND worker_id = $3"

MUTANTS = (
    Mutant(
        name="complete-without-lease",
        file=SQL + "complete_jobs.sql",
        old=COMPLETION_GUARD,
        new=ignored(COMPLETION_GUARD),
        tests=(INTEGRATION + "test_finish.py::TestGuards",),
    ),
    Mutant(
        name="complete-without-worker",
        file=SQL + "complete_jobs.sql",
        old=WORKER_GUARD,
        new=ignored(WORKER_GUARD),
        tests=(INTEGRATION + "test_finish.py::TestGuards",),
    ),
    Mutant(
        name="snooze-without-lease",
        file=SQL + "snooze_jobs.sql",
        old=GUARD,
        new=ignored(GUARD),
        tests=(INTEGRATION + "test_finish.py::TestGuards",),
    ),
    Mutant(
        name="release-without-worker",
        file=SQL + "release_jobs.sql",
        old=WORKER_GUARD,
        new=ignored(WORKER_GUARD),
        tests=(INTEGRATION + "test_finish.py::TestGuards",),
    ),
    Mutant(
        name="discard-without-lease",
        file=SQL + "discard_jobs.sql",
        old=GUARD,
        new=ignored(GUARD),
        tests=(INTEGRATION + "test_finish.py::TestGuards",),
    ),
    Mutant(
        name="throttle-without-lease",
        file=SQL + "throttle_jobs.sql",
        old=GUARD,
        new=ignored(GUARD),
        tests=(INTEGRATION + "test_finish.py::TestGuards",),
    ),
    Mutant(
        name="progress-without-lease",
        file=SQL + "update_progress.sql",
        old=GUARD,
        new=ignored(GUARD),
        tests=(INTEGRATION + "test_finish.py::TestGuards",),
    ),
    Mutant(
        name="renew-without-lease",
        file=SQL + "renew_leases.sql",
        old=GUARD,
        new=ignored(GUARD),
        tests=(INTEGRATION + "test_finish.py::TestGuards", INTEGRATION + "test_worker_heartbeat.py"),
    ),
    Mutant(
        name="fail-without-worker",
        file=BASELINE + "10_failed_attempts.sql",
        old=" AND (holder IS NULL OR worker_id = holder)",
        new="",
        tests=(INTEGRATION + "test_finish.py::TestGuards",),
    ),
    Mutant(
        name="attempts-without-end",
        file=BASELINE + "10_failed_attempts.sql",
        old="used_attempts < max_attempts AND",
        new="attempt <= max_attempts AND",
        tests=(INTEGRATION + "test_finish.py::TestFail",),
    ),
    Mutant(
        name="release-without-lease",
        file=SQL + "release_jobs.sql",
        old=GUARD,
        new=ignored(GUARD),
        tests=(INTEGRATION + "test_finish.py::TestGuards",),
    ),
    Mutant(
        name="discard-without-worker",
        file=SQL + "discard_jobs.sql",
        old=WORKER_GUARD,
        new=ignored(WORKER_GUARD),
        tests=(INTEGRATION + "test_finish.py::TestGuards",),
    ),
    Mutant(
        name="snooze-without-worker",
        file=SQL + "snooze_jobs.sql",
        old=WORKER_GUARD,
        new=ignored(WORKER_GUARD),
        tests=(INTEGRATION + "test_finish.py::TestGuards",),
    ),
    Mutant(
        name="advance-without-lease",
        file=SQL + "advance_jobs.sql",
        old=GUARD,
        new=ignored(GUARD),
        tests=(INTEGRATION + "test_finish.py::TestGuards",),
    ),
    Mutant(
        name="advance-without-worker",
        file=SQL + "advance_jobs.sql",
        old=WORKER_GUARD,
        new=ignored(WORKER_GUARD),
        tests=(INTEGRATION + "test_finish.py::TestGuards",),
    ),
    Mutant(
        name="throttle-without-worker",
        file=SQL + "throttle_jobs.sql",
        old=WORKER_GUARD,
        new=ignored(WORKER_GUARD),
        tests=(INTEGRATION + "test_finish.py::TestGuards",),
    ),
    Mutant(
        name="fail-without-lease",
        file=BASELINE + "10_failed_attempts.sql",
        old=" AND lease = (lease_of ->> id::text)::int",
        new="",
        tests=(INTEGRATION + "test_finish.py::TestGuards",),
    ),
    Mutant(
        name="progress-without-worker",
        file=SQL + "update_progress.sql",
        old=WORKER_GUARD,
        new=ignored(WORKER_GUARD),
        tests=(INTEGRATION + "test_finish.py::TestGuards",),
    ),
    Mutant(
        name="renew-without-worker",
        file=SQL + "renew_leases.sql",
        old=WORKER_GUARD,
        new=ignored(WORKER_GUARD),
        tests=(INTEGRATION + "test_finish.py::TestGuards", INTEGRATION + "test_worker_heartbeat.py"),
    ),
    Mutant(
        name="check-without-lease",
        file=SQL + "check_leases.sql",
        old=GUARD,
        new=ignored(GUARD),
        tests=(INTEGRATION + "test_finish.py::TestGuards",),
    ),
    Mutant(
        name="check-without-worker",
        file=SQL + "check_leases.sql",
        old=WORKER_GUARD,
        new=ignored(WORKER_GUARD),
        tests=(INTEGRATION + "test_finish.py::TestGuards",),
    ),
    Mutant(
        name="release-counts-the-attempt",
        file=SQL + "release_jobs.sql",
        old="attempt - 1, lease",
        new="attempt, lease",
        tests=(INTEGRATION + "test_finish.py", INTEGRATION + "test_leases.py::TestStart"),
    ),
)
