"""`awa doctor` on a healthy server, with five problems, and after they were fixed."""

import asyncio
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from awa_py.embedded import EmbeddedPostgres
from tests.acceptance.conftest import Answer, Awa

pytestmark = pytest.mark.integration

KEYS = {"level", "group", "check", "about", "says", "do"}
TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def healthy_url() -> Iterator[str]:
    """Start a server with production settings, which the tests' server does not have."""
    with EmbeddedPostgres() as server:
        yield server.url


def problems(answer: Answer) -> dict[str, str]:
    """Return the subject of each problem and how to fix it."""
    return {f"{each['check']} {each['about']}": each["do"] for each in answer.json if each["level"] == "problem"}


def wait_until_healthy(awa: Awa) -> Answer:
    deadline = time.monotonic() + TIMEOUT_S
    while (answer := awa("doctor")).code:
        assert time.monotonic() < deadline, answer.out
        time.sleep(0.2)
    return answer


def test_doctor_finds_five_problems_and_its_advice_fixes_them(
    tmp_path: Path, healthy_url: str, zygote: "subprocess.Popen[str]"
) -> None:
    awa = Awa(tmp_path, healthy_url, zygote)
    assert "`awa migrate`" in awa("doctor").out
    awa.ok("migrate")
    # Cleanup does not run during the test: it would create the missing partition.
    worker = awa.start("worker", "tasks:app", "-q", "default", "-q", "email", env={"AWA_CLEANUP_INTERVAL": "1h"})
    try:
        answer = wait_until_healthy(awa)
        assert "problem " not in answer.out
        assert "PostgreSQL" in answer.out
        assert "do:" not in answer.out
        assert answer.out.endswith("no problems found\n")
        asyncio.run(_break_and_fix(awa, healthy_url))
        assert wait_until_healthy(awa).out.endswith("no problems found\n")
    finally:
        worker.terminate()
        worker.communicate(timeout=TIMEOUT_S)


async def _break_and_fix(awa: Awa, url: str) -> None:
    forgotten = await asyncpg.connect(url, server_settings={"application_name": "forgetful"})
    connection = await asyncpg.connect(url)
    try:
        partition = await connection.fetchval(
            "SELECT 'completed_' || to_char((now() AT TIME ZONE 'UTC')::date + 2, 'YYYYMMDD')"
        )
        await connection.execute(f"DROP INDEX awa.scheduled_run_at; DROP TABLE awa.{partition}")
        await connection.execute(
            "INSERT INTO awa.cron (name, expression, kind) VALUES ('never', '0 0 30 2 *', 'digest')"
        )
        awa.ok("queue", "pause", "email")
        awa.ok("enqueue", "greet", '{"name": "s3cr3t"}', "--queue", "email")
        await forgotten.execute("BEGIN; SELECT count(*) FROM awa.queues")
        pid = forgotten.get_server_pid()
        await asyncio.sleep(0.1)

        answer = awa("doctor", "--json", "--long-transaction", "100ms")
        assert answer.code == 1
        assert all(set(each) == KEYS for each in answer.json)
        assert "s3cr3t" not in answer.out
        expected = {
            "objects index scheduled_run_at",
            f"partitions partition {partition}",
            "queues queue email",
            "schedules schedule never",
            f"transactions session {pid}",
        }
        found = problems(answer)
        assert expected <= found.keys()
        # On a slow machine, a transaction of the worker may take this long, too.
        assert all(name.startswith("transactions session") for name in found.keys() - expected)
        report = awa("doctor", env={"AWA_DOCTOR_LONG_TRANSACTION": "100ms"})
        assert (report.code, report.err) == (1, "")
        assert re.match(r"[5-9] problems", report.out.splitlines()[-1])
        assert all(f"do: {found[name]}" in report.out for name in expected)

        for name in ("objects index scheduled_run_at", f"partitions partition {partition}"):
            await connection.execute(found[name])
        awa.ok("queue", "resume", "email")
        awa.ok("cron", "delete", "never")
        await connection.execute(found[f"transactions session {pid}"].partition(";")[0])
    finally:
        await connection.close()
        forgotten.terminate()


def test_output_fits_80_columns_without_cutting_sentences(awa: Awa) -> None:
    answer = awa("doctor", env={"COLUMNS": "80"})
    assert answer.code == 1
    assert all(len(line) <= 80 for line in answer.out.splitlines())
    assert "…" not in answer.out
    assert "There is no leader" in answer.out


def test_unreachable_database_is_a_problem(bare_awa: Awa) -> None:
    url = "postgresql://me:s3cr3t@127.0.0.1:1/nothing"
    answer = bare_awa("doctor", "--database-url", url)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith("awa: cannot connect to the database")
    answer = bare_awa("doctor", "--database-url", url, "--json")
    assert answer.code == 1
    assert [(each["level"], each["check"]) for each in answer.json] == [("problem", "connect")]
    assert "s3cr3t" not in answer.out + answer.err


def test_wrong_usage_exits_with_2(awa: Awa) -> None:
    assert awa("doctor", "--long-transaction", "ages").code == 2
