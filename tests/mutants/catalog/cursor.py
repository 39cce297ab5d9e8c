"""Mistakes in the cursors of claims and promotions."""

from tests.mutants.mutant import INTEGRATION, SQL, Mutant

MUTANTS = (
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
    Mutant(
        name="full-scans-without-a-pause",
        file="awa_py/store/full_scan.py",
        old="pause_s = COST_RATIO * (ended - began)",
        new="pause_s = 0.0",
        tests=("tests/unit/test_full_scan.py",),
    ),
    Mutant(
        name="short-scan-counts-as-full",
        file="awa_py/store/full_scan.py",
        old="        if full:\n",
        new="        if True:\n",
        tests=("tests/unit/test_full_scan.py",),
    ),
    Mutant(
        name="promotion-of-jobs-that-are-not-due",
        file=SQL + "promote_jobs.sql",
        old="AND run_at <= now()\n",
        new="\n",
        tests=(INTEGRATION + "test_promote.py",),
    ),
    Mutant(
        name="promotion-waits-for-locked-rows",
        file=SQL + "promote_jobs.sql",
        old="FOR UPDATE SKIP LOCKED",
        new="FOR UPDATE",
        tests=(INTEGRATION + "test_promote.py",),
    ),
)
