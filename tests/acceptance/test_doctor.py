"""`awa doctor`, as an operator runs it: all is well; five planted problems; all is well again."""

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
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def healthy_url() -> Iterator[str]:
    """A server that is set up as in production: the tests' own one is not."""
    with EmbeddedPostgres() as server:
        yield server.url


def problems(answer: Answer) -> dict[str, str]:
    """What each problem is about, and what to do."""
    return {f"{each['check']} {each['about']}": each["do"] for each in answer.json if each["level"] == "problem"}


def until_well(awa: Awa) -> Answer:
    deadline = time.monotonic() + PATIENCE_S
    while (answer := awa("doctor")).code:
        assert time.monotonic() < deadline, answer.out
        time.sleep(0.2)
    return answer


def test_all_is_well_then_five_problems_then_all_is_well(
    tmp_path: Path, healthy_url: str, zygote: "subprocess.Popen[str]"
) -> None:
    awa = Awa(tmp_path, healthy_url, zygote)
    assert "`awa migrate`" in awa("doctor").out
    awa.ok("migrate")
    # It does not make partitions meanwhile: what is planted stays until it is mended by hand.
    worker = awa.start("worker", "tasks:app", "-q", "default", "-q", "email", env={"AWA_CLEANUP_INTERVAL": "1h"})
    try:
        answer = until_well(awa)
        assert "problem" not in answer.out
        assert "PostgreSQL" in answer.out
        assert "do:" not in answer.out
        assert answer.out.endswith("all is well\n")
        asyncio.run(_plant_and_mend(awa, healthy_url))
        assert until_well(awa).out.endswith("all is well\n")
    finally:
        worker.terminate()
        worker.communicate(timeout=PATIENCE_S)


async def _plant_and_mend(awa: Awa, url: str) -> None:
    forgotten = await asyncpg.connect(url, server_settings={"application_name": "forgetful"})
    connection = await asyncpg.connect(url)
    try:
        part = await connection.fetchval(
            "SELECT 'completed_' || to_char((now() AT TIME ZONE 'UTC')::date + 2, 'YYYYMMDD')"
        )
        await connection.execute(f"DROP INDEX awa.scheduled_run_at; DROP TABLE awa.{part}")
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
        planted = {
            "objects index scheduled_run_at",
            f"partitions partition {part}",
            "queues queue email",
            "schedules schedule never",
            f"transactions session {pid}",
        }
        found = problems(answer)
        assert planted <= found.keys()
        # On a slow machine, a transaction of the worker may take that long too.
        assert all(name.startswith("transactions session") for name in found.keys() - planted)
        report = awa("doctor", env={"AWA_DOCTOR_LONG_TRANSACTION": "100ms"})
        assert (report.code, report.err) == (1, "")
        assert re.match(r"[5-9] problems", report.out.splitlines()[-1])
        assert all(f"do: {found[name]}" in report.out for name in planted)

        for name in ("objects index scheduled_run_at", f"partitions partition {part}"):
            await connection.execute(found[name])
        awa.ok("queue", "resume", "email")
        awa.ok("cron", "delete", "never")
        await connection.execute(found[f"transactions session {pid}"].partition(";")[0])
    finally:
        await connection.close()
        forgotten.terminate()


def test_narrow_terminals_get_whole_sentences(awa: Awa) -> None:
    answer = awa("doctor", env={"COLUMNS": "80"})
    assert answer.code == 1
    assert all(len(line) <= 80 for line in answer.out.splitlines())
    assert "…" not in answer.out
    assert "There is no leader" in answer.out


def test_a_database_that_cannot_be_reached(bare_awa: Awa) -> None:
    url = "postgresql://me:s3cr3t@127.0.0.1:1/nothing"
    answer = bare_awa("doctor", "--database-url", url)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith("awa: cannot connect to the database")
    answer = bare_awa("doctor", "--database-url", url, "--json")
    assert answer.code == 1
    assert [(each["level"], each["check"]) for each in answer.json] == [("problem", "connect")]
    assert "s3cr3t" not in answer.out + answer.err


def test_wrong_usage(awa: Awa) -> None:
    assert awa("doctor", "--long-transaction", "ages").code == 2
