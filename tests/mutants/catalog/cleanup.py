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
)
