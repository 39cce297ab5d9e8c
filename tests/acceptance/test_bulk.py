"""`awa job retry|cancel|delete|move` with filters: count, confirm, change."""

import asyncio
import os
import pty
import signal
import subprocess
import sys

import pytest

from awa_py.db.database import Database
from awa_py.store.session import Session
from tests.acceptance.conftest import Awa
from tests.support import another_session, eventually, insert, insert_running, states
from tests.terminal import read_all, read_until

pytestmark = pytest.mark.integration


@pytest.fixture
async def failed(session: Session) -> None:
    """Insert three failed jobs, two of them in the queue mail, and one running job."""
    error = '[{"attempt": 1, "error": "TimeoutError: it timed out"}]'
    await insert(session, "dead", 2, state="failed", queue="mail", attempt=1, errors=error)
    await insert(session, "dead", state="failed", attempt=1, kind="digest")
    await insert_running(session)


@pytest.mark.usefixtures("failed")
class TestConfirmation:
    async def test_answer_no_changes_nothing(self, awa: Awa, session: Session) -> None:
        answer = awa("job", "retry", "--error", "timed out", stdin="n\n")
        assert answer.code == 1
        lines = answer.out.splitlines()
        assert [line.split() for line in lines[:2]] == [["state", "queue", "jobs"], ["failed", "mail", "2"]]
        assert lines[2].startswith("Retry 2 jobs? [y/N]: ")
        assert await states(session) == {"failed": 3, "running": 1}

    async def test_closed_standard_input_means_no(self, awa: Awa, session: Session) -> None:
        assert awa("job", "delete", "--all").code == 1
        assert await states(session) == {"failed": 3, "running": 1}

    async def test_answer_yes_changes_the_jobs(self, awa: Awa, session: Session) -> None:
        answer = awa.ok("job", "retry", "--queue", "mail", stdin="y\n")
        assert answer.out.splitlines()[-1].endswith("2 jobs retried")
        assert await states(session) == {"failed": 1, "available": 2, "running": 1}

    async def test_option_yes_skips_the_question(self, awa: Awa, session: Session) -> None:
        assert awa.ok("job", "delete", "--kind", "digest", "--yes").out.splitlines()[-1] == "1 job deleted"
        assert awa.ok("job", "cancel", "--all", "--yes").out.splitlines()[-1] == "1 job cancelled"
        assert await states(session) == {"failed": 2, "running": 1}  # cancel was only requested

    async def test_dry_run_changes_nothing(self, awa: Awa, session: Session) -> None:
        answer = awa.ok("job", "delete", "--all", "--dry-run")
        assert answer.out.splitlines()[-2:] == ["skipped: 1 running job", "3 jobs would be deleted"]
        assert awa.ok("job", "delete", "--all", "--dry-run", "--limit", "2", "--json").json == {
            "operation": "delete",
            "jobs": 2,
            "by": [{"state": "failed", "queue": "mail", "jobs": 2}],
            "left_alone": 1,
            "done": 0,
        }
        assert await states(session) == {"failed": 3, "running": 1}

    async def test_json_asks_on_standard_error(self, awa: Awa, session: Session) -> None:
        answer = awa.ok("job", "retry", "--all", "--limit", "1", "--json", stdin="y\n")
        assert answer.json["done"] == 1
        assert "Retry 1 job?" in answer.err
        assert await states(session) == {"failed": 2, "available": 1, "running": 1}

    @pytest.mark.parametrize("options", [(), ("--yes",), ("--dry-run",)])
    def test_no_matching_jobs_is_not_an_error(self, awa: Awa, options: tuple[str, ...]) -> None:
        assert awa.ok("job", "retry", "--queue", "nowhere", *options).out == "no jobs match\n"

    async def test_move_changes_queue_and_priority(self, awa: Awa, session: Session) -> None:
        awa.ok("job", "retry", "--all", "--yes")
        answer = awa.ok("job", "move", "--queue", "mail", "--to-queue", "bulk", "--to-priority", "4", "--yes")
        assert answer.out.splitlines()[-1] == "2 jobs moved"
        listed = awa.ok("job", "list", "--queue", "bulk", "--json").json
        assert [job["priority"] for job in listed] == [4, 4]
        (running,) = [str(job["id"]) for job in awa.ok("job", "list", "--state", "running", "--json").json]
        waiting = str(listed[0]["id"])
        both = awa("job", "move", waiting, running, "--to-queue", "mail")
        assert both.code == 1
        assert both.out == f"job {waiting}: moved\n"
        assert both.err == f"awa: job {running} is running: nothing was changed\n"


NO_JOBS = "no jobs selected: give their ids, or filters: --queue"

WRONG_USAGE = [
    (("retry",), NO_JOBS),
    (("cancel", "--yes"), NO_JOBS),
    (("delete", "--dry-run"), NO_JOBS),
    (("move", "--to-queue", "x"), NO_JOBS),
    (("retry", "1", "--queue", "mail"), "either ids or filters"),
    (("retry", "1", "--all"), "either ids or filters"),
    (("retry", "--all", "--queue", "mail"), "--all cannot be combined with filters"),
    (("retry", "1", "--dry-run"), "cannot be used with ids"),
    (("retry", "1", "--limit", "3"), "cannot be used with ids"),
    (("retry", "--state", "running"), "retry does not apply to running jobs: it applies to failed, retryable"),
    (("move", "--state", "failed", "--to-queue", "x"), "move does not apply to failed jobs"),
    (("move", "1"), "nothing to change: use --to-queue, --to-priority, or both"),
    (("move", "--all", "--to-priority", "5"), "less than or equal to 4"),
    (("move", "--all", "--to-queue", "a,b"), "a queue's name cannot contain a comma"),
    (("cancel", "--older-than", "soon"), '"soon" is not a duration'),
    (("cancel", "--all", "--limit", "0"), "greater than or equal to 1"),
    (("retry", "first"), "is not a job id"),
]


@pytest.mark.parametrize(("command", "sentence"), WRONG_USAGE, ids=lambda value: " ".join(value)[:60])
def test_wrong_usage_exits_with_2(bare_awa: Awa, command: tuple[str, ...], sentence: str) -> None:
    answer = bare_awa("job", *command)
    assert (answer.code, answer.out) == (2, "")
    assert sentence in " ".join(answer.err.replace("│", " ").split())


async def test_interrupt_stops_between_batches(awa: Awa, session: Session, database: Database) -> None:
    """A terminal shows the progress. Ctrl-C reports how many jobs were changed, and no batch is half done."""
    total = 5000
    await insert(session, "dead", total, state="failed", attempt=1)
    last = await session.connection.fetchval("SELECT max(id) FROM awa.dead")
    controller, terminal = pty.openpty()
    async with another_session(database) as other:
        transaction = other.connection.transaction()
        await transaction.start()
        await other.connection.execute("SELECT FROM awa.dead WHERE id = $1 FOR UPDATE", last - 2000)
        process = subprocess.Popen(
            [sys.executable, "-m", "awa_cli", "job", "retry", "--all", "--yes"],
            cwd=awa.directory,
            env={**os.environ, "AWA_DATABASE_URL": database.url},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=terminal,
            text=True,
        )
        os.close(terminal)
        try:
            # It waits in the middle for a locked row.
            async def is_waiting() -> bool:
                return bool(await session.connection.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"))

            await eventually(is_waiting)
            shown = await asyncio.to_thread(read_until, controller, "retry ━")
            process.send_signal(signal.SIGINT)
            await transaction.rollback()
            out, _ = process.communicate(timeout=30)
        finally:
            process.kill()
    seen = shown + read_all(controller)
    counts = await states(session)
    retried = counts["available"]
    assert process.returncode == 130
    assert 0 < retried < total
    assert retried % 500 == 0
    assert retried + counts["failed"] == total
    assert out.splitlines()[-1] == f"{retried:,} jobs retried"
    assert "retry ━" in seen
    assert f"of {total:,}" in seen
    assert "awa: interrupted: the remaining jobs are unchanged" in seen
