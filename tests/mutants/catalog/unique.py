"""Mistakes in unique keys."""

from tests.mutants.mutant import BASELINE, INTEGRATION, Mutant

MUTANTS = (
    Mutant(
        name="key-of-an-ended-job-stays",
        file=BASELINE + "08_unique_keys.sql",
        old="AND state = ANY (unique_keys.states)\n",
        new="\n",
        tests=(INTEGRATION + "test_enqueue.py", INTEGRATION + "test_unique_retry.py"),
    ),
    Mutant(
        name="key-after-its-period",
        file=BASELINE + "08_unique_keys.sql",
        old="           OR expires_at > now() IS NOT FALSE\n              AND EXISTS",
        new="           OR EXISTS",
        tests=(INTEGRATION + "test_enqueue.py",),
    ),
    Mutant(
        name="held-key-is-taken-over",
        file=BASELINE + "08_unique_keys.sql",
        old="SELECT key, job_id, expires_at, states FROM unnest(wanted) WHERE NOT held ? key",
        new="SELECT key, job_id, expires_at, states FROM unnest(wanted)",
        tests=(INTEGRATION + "test_enqueue.py",),
    ),
    Mutant(
        name="existing-key-without-a-second-look",
        file="awa_py/store/enqueue.py",
        old="""    if row is None:  # the key exists: its holder may have to be replaced
        return (await enqueue_jobs(session, [job]))[0]
""",
        new="    assert row is not None\n",
        tests=(INTEGRATION + "test_enqueue.py",),
    ),
    Mutant(
        name="keys-out-of-order",
        file=BASELINE + "09_enqueue.sql",
        old="now() + unique_for, unique_states)::awa.unique_keys)",
        new="now() + unique_for, unique_states)::awa.unique_keys ORDER BY id)",
        tests=(INTEGRATION + "test_enqueue.py::TestMany",),
    ),
)
