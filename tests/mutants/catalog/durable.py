"""Mistakes in durable jobs: what is recorded, by which attempt, and what wakes a job that waits."""

from tests.mutants.catalog.guard import GUARD, WORKER_GUARD
from tests.mutants.mutant import BASELINE, INTEGRATION, SQL, Mutant, ignored

DURABLE = "awa_py/worker/durable/"
GUARDS = INTEGRATION + "test_durable_guards.py"
CHILDREN = INTEGRATION + "test_durable_children.py"
SIGNALS = INTEGRATION + "test_durable_signals.py"
STEPS = INTEGRATION + "test_durable_steps.py"
MISTAKES = INTEGRATION + "test_durable_mistakes.py"

MUTANTS = (
    Mutant(
        name="record-without-lease",
        file=SQL + "record_checkpoints.sql",
        old=GUARD,
        new=ignored(GUARD),
        tests=(GUARDS,),
    ),
    Mutant(
        name="record-without-worker",
        file=SQL + "record_checkpoints.sql",
        old=WORKER_GUARD,
        new=ignored(WORKER_GUARD),
        tests=(GUARDS,),
    ),
    Mutant(
        name="repeated-record-moves-the-timer",
        file=SQL + "record_checkpoints.sql",
        old="DO UPDATE SET name = excluded.name ",
        new="DO UPDATE SET name = excluded.name, until = excluded.until ",
        tests=(GUARDS,),
    ),
    Mutant(
        name="read-without-lease",
        file=SQL + "read_checkpoints.sql",
        old=GUARD,
        new=ignored(GUARD),
        tests=(GUARDS,),
    ),
    Mutant(
        name="complete-durable-without-lease",
        file=SQL + "complete_durable_jobs.sql",
        old=GUARD,
        new=ignored(GUARD),
        tests=(GUARDS,),
    ),
    Mutant(
        name="complete-durable-without-worker",
        file=SQL + "complete_durable_jobs.sql",
        old=WORKER_GUARD,
        new=ignored(WORKER_GUARD),
        tests=(GUARDS,),
    ),
    Mutant(
        name="completed-job-leaves-its-checkpoints",
        file=SQL + "complete_durable_jobs.sql",
        old="DELETE FROM awa.checkpoints WHERE job_id = ANY (ARRAY(SELECT id FROM ended))\n    RETURNING *",
        new="SELECT * FROM awa.checkpoints WHERE job_id = ANY (ARRAY(SELECT id FROM ended))",
        tests=(INTEGRATION + "test_durable_storage.py",),
    ),
    Mutant(
        name="suspend-without-a-look-at-the-signals",
        file=BASELINE + "17_checkpoints.sql",
        old="RETURNING *, id = ANY (signalled) AS is_woken",
        new="RETURNING *, false AS is_woken",
        tests=(SIGNALS, INTEGRATION + "test_durable_races.py"),
    ),
    Mutant(
        name="signal-without-lease",
        file=BASELINE + "17_checkpoints.sql",
        old="WHERE id = ids[i] AND lease = leases[i] AND worker_id = holder FOR KEY SHARE",
        new="WHERE id = ids[i] AND worker_id = holder FOR KEY SHARE",
        tests=(GUARDS,),
    ),
    Mutant(
        name="transaction-without-worker",
        file=BASELINE + "17_checkpoints.sql",
        old="PERFORM FROM awa.running WHERE id = job AND lease = job_lease AND worker_id = holder FOR KEY SHARE",
        new="PERFORM FROM awa.running WHERE id = job AND lease = job_lease FOR KEY SHARE",
        tests=(GUARDS,),
    ),
    Mutant(
        name="parent-wakes-before-its-last-child",
        file=SQL + "wake_parents.sql",
        old="WHERE awa.children_have_ended(scheduled.id, ids, fail_fast)",
        new="WHERE awa.children_have_ended(scheduled.id, ids, fail_fast) OR true",
        tests=(CHILDREN,),
    ),
    Mutant(
        name="parent-does-not-look-after-its-suspension",
        file="awa_py/worker/parent_waker.py",
        old="if jobs and isinstance(jobs[0].outcome, AttemptSuspended):",
        new="if False:",
        tests=(CHILDREN,),
    ),
    Mutant(
        name="later-attempt-forgets-the-records",
        file=DURABLE + "memory.py",
        old="self._is_read = job.lease == 1",
        new="self._is_read = True",
        tests=(STEPS,),
    ),
    Mutant(
        name="other-arguments-are-not-noticed",
        file=DURABLE + "memory.py",
        old="checkpoint.digest is not None and checkpoint.digest != digest",
        new="checkpoint.digest is not None and checkpoint.digest == 0",
        tests=(MISTAKES,),
    ),
    Mutant(
        name="another-sort-of-call-is-not-noticed",
        file=DURABLE + "memory.py",
        old="if checkpoint.type != call_type:",
        new="if checkpoint.type is None:",
        tests=(MISTAKES,),
    ),
    Mutant(
        name="forgotten-call-is-not-noticed",
        file=DURABLE + "run.py",
        old="if error is None and self._ending is None:",
        new="if error is None and self._ending is not None:",
        tests=(MISTAKES,),
    ),
    Mutant(
        name="transaction-of-a-lost-lease-commits",
        file=DURABLE + "transactions.py",
        old="if not await checkpoints.record_transaction(session, self._worker_id, record):",
        new="if await checkpoints.record_transaction(session, self._worker_id, record) is None:",
        tests=(INTEGRATION + "test_durable_transactions.py",),
    ),
    Mutant(
        name="children-of-a-lost-lease-are-spawned",
        file=DURABLE + "spawner.py",
        old="if len(allowed) < len(holders):",
        new="if len(allowed) > len(holders):",
        tests=(GUARDS,),
    ),
    Mutant(
        name="lost-answer-spawns-children-twice",
        file=DURABLE + "spawner.py",
        old="repeated = [n for n, each in enumerate(requests) if each.may_exist]",
        new="repeated = [n for n, each in enumerate(requests) if each.may_exist is None]",
        tests=(GUARDS,),
    ),
)
