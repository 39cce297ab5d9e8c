"""Mistakes in the election and the leader's loop."""

from tests.mutants.mutant import INTEGRATION, SQL, Mutant

MUTANTS = (
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
    Mutant(
        name="leader-frozen-within-a-statement-stays",
        file="awa_py/maintenance/election.py",
        old="                await self._terminate_frozen_leader(session)\n",
        new="",
        tests=(INTEGRATION + "test_election.py::TestLeader",),
    ),
    Mutant(
        name="any-silent-leader-is-ended",
        file=SQL + "terminate_frozen_leader.sql",
        old="activity.wait_event_type = 'Client' AND ",
        new="",
        tests=(INTEGRATION + "test_leader_session.py",),
    ),
    Mutant(
        name="statements-without-a-timeout",
        file="awa_py/maintenance/election.py",
        old='        "statement_timeout": timeout_ms,\n',
        new="",
        tests=(INTEGRATION + "test_leader_session.py",),
    ),
    Mutant(
        name="lock-without-a-leader-goes-unnoticed",
        file="awa_py/maintenance/election.py",
        old="self._set_foreign_lock_holders([holder for holder in foreign if holder.pid in suspects])",
        new="pass",
        tests=(INTEGRATION + "test_foreign_locks.py",),
    ),
    Mutant(
        name="failing-task-ends-the-loop",
        file="awa_py/maintenance/loop.py",
        old="        except Exception as error:\n",
        new="        except ArithmeticError as error:\n",
        tests=(INTEGRATION + "test_election.py::TestLeader",),
    ),
)
