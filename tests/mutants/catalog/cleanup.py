"""Mistakes in the cleanup of old rows."""

from tests.mutants.mutant import INTEGRATION, SQL, Mutant

MUTANTS = (
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
        old="SELECT * FROM with_payload LIMIT $2) AS old",
        new="SELECT * FROM with_payload) AS old",
        tests=(INTEGRATION + "test_cleanup.py",),
    ),
    Mutant(
        name="dropped-partition-with-payloads",
        file="schema/0001_baseline/04_partitions.sql",
        old="CONTINUE WHEN has_payloads;",
        new="CONTINUE WHEN false;",
        tests=(INTEGRATION + "test_payload_deletion.py",),
    ),
    Mutant(
        name="payloads-of-jobs-that-are-not-kept",
        file=SQL + "complete_jobs.sql",
        old="WHERE args IS NULL AND NOT is_kept",
        new="WHERE args IS NULL AND NOT is_kept AND false",
        tests=(INTEGRATION + "test_payload_deletion.py",),
    ),
    Mutant(
        name="cleanup-of-payloads-in-use",
        file=SQL + "delete_stray_payloads.sql",
        old="WHERE NOT EXISTS (SELECT FROM awa.jobs WHERE id = window_payloads.job_id OFFSET 0)",
        new="WHERE true",
        tests=(INTEGRATION + "test_payload_deletion.py",),
    ),
    Mutant(
        name="cleanup-of-held-unique-keys",
        file=SQL + "delete_free_unique_keys.sql",
        old="OR NOT EXISTS",
        new="OR EXISTS",
        tests=(INTEGRATION + "test_cleanup.py",),
    ),
)
