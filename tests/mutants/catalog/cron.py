"""Mistakes in the declaration of schedules and in their compare-and-swap."""

from tests.mutants.mutant import INTEGRATION, SQL, Mutant, ignored

MUTANTS = (
    Mutant(
        name="fire-without-compare",
        file=SQL + "fire_schedule.sql",
        old=" AND last_enqueued_at IS NOT DISTINCT FROM $2::timestamptz",
        new=ignored(" AND last_enqueued_at IS NOT DISTINCT FROM $2::timestamptz"),
        tests=(INTEGRATION + "test_cron.py",),
    ),
    Mutant(
        name="fire-of-an-old-expression",
        file=SQL + "fire_schedule.sql",
        old="\n      AND expression = $6 AND timezone = $7",
        new=ignored("\n      AND expression = $6 AND timezone = $7"),
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
    Mutant(
        name="replaced-version-declares-again",
        file=SQL + "declare_schedule.sql",
        old="$9::boolean OR excluded.version <> ALL (old.replaced_versions)",
        new="$9::boolean OR true",
        tests=(INTEGRATION + "test_cron.py::TestVersions",),
    ),
    Mutant(
        name="declaration-replaces-that-of-an-operator",
        file=SQL + "declare_schedule.sql",
        old="WHERE old.version IS NOT NULL AND ",
        new="WHERE ",
        tests=(INTEGRATION + "test_cron.py::TestVersions",),
    ),
    Mutant(
        name="fire-of-a-disabled-schedule",
        file=SQL + "fire_schedule.sql",
        old="name = $1 AND enabled AND",
        new="name = $1 AND",
        tests=(INTEGRATION + "test_cron.py",),
    ),
    Mutant(
        name="fire-that-is-not-recorded",
        file=SQL + "fire_schedule.sql",
        old="SET last_enqueued_at = coalesce($4::timestamptz, last_enqueued_at), ",
        new="SET last_enqueued_at = CASE WHEN false THEN $4::timestamptz ELSE last_enqueued_at END, ",
        tests=(INTEGRATION + "test_cron.py",),
    ),
)
