"""`awa bench` as a real command: its results, and that it cleans up, whatever ends it."""

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from awa_cli.bench.cost_recorder import CostRecorder, recording_costs

from awa_py.connections import Connection
from awa_py.db.database import Database
from tests.acceptance.conftest import Awa
from tests.processes import eventually
from tests.terminal import read_all

pytestmark = pytest.mark.integration

TIMEOUT_S = 60.0
PERCENTILES = {"p50_ms", "p95_ms", "p99_ms", "max_ms"}
COSTS = {"wal_bytes_per_job", "transactions_per_job", "cpu_us_per_job", "dead_tuples_per_job"}
ALWAYS = {"workload", "options", "jobs", "server", "fsync", "synchronous_commit"} | COSTS
SCHEMAS = "SELECT array_agg(nspname::text) FROM pg_namespace WHERE nspname LIKE 'awa\\_bench\\_%'"

RATES = {"seconds", "jobs_per_s"}
COMPARED = {"rounds", "jobs_per_s", "jobs_per_s_without", "ratio", "ratios", "ratio_of_cpu"}
VARIANT = (
    "--discard",
    "--pinned",
    "--argument-bytes",
    "2000",
    "--concurrency",
    "7",
    "--completed",
    "500",
    "--scheduled",
    "400",
)
WORKLOADS = [
    (("drain", "--jobs", "1500", "--batch"), RATES | {"thirds"}),
    (("drain", "--jobs", "300", *VARIANT), RATES | {"thirds"}),
    (("drain", "--jobs", "300", "--sync", "--handler-ms", "2"), RATES | {"thirds"}),
    (("drain", "--jobs", "300", "--queues", "20", "--handler-ms", "2"), RATES | {"thirds"}),
    (("drain", "--jobs", "300", "--max-workers", "3"), RATES | {"thirds"}),
    (("drain", "--jobs", "300", "--processes", "2", "--concurrency", "9"), RATES | {"thirds"}),
    (("enqueue", "--unique", "--jobs", "200"), RATES),
    (("enqueue", "--unique", "--mode", "bulk", "--jobs", "500"), RATES),
    (("enqueue", "--mode", "bulk", "--jobs", "500"), RATES),
    (("enqueue", "--mode", "producers", "--jobs", "200", "--producers", "8", "--worker"), RATES),
    (("latency", "--jobs", "10"), PERCENTILES),
    (("steady", "--rate", "100", "--seconds", "0.5"), {"kept_up", "rate", *PERCENTILES}),
    (("punctuality", "--jobs", "8"), PERCENTILES),
    (("retries", "--jobs", "100"), RATES | {"attempts_per_s"}),
    (("timeline", "--jobs", "100", "--rounds", "2"), COMPARED),
    (("timeline", "--jobs", "100", "--rounds", "1", "--failing"), COMPARED),
]


async def schemas(connection: Connection) -> list[str]:
    return await connection.fetchval(SCHEMAS) or []


def measure(awa: Awa, url: str, *arguments: str) -> dict[str, Any]:
    answer = awa.ok("bench", *arguments, "--json", "--database-url", url)
    assert answer.err == ""
    found: dict[str, Any] = answer.json
    return found


@pytest.mark.parametrize(("arguments", "figures"), WORKLOADS, ids=[" ".join(each) for each, _ in WORKLOADS])
async def test_workload_reports_its_results_and_drops_its_schema(
    awa: Awa, database_url: str, connection: Connection, arguments: tuple[str, ...], figures: set[str]
) -> None:
    found = measure(awa, database_url, *arguments)
    assert found.keys() == figures | ALWAYS
    assert found["workload"] == arguments[0]
    assert all(found[name] > 0 for name in figures & {"seconds", "jobs_per_s", "attempts_per_s", "rate", "max_ms"})
    assert found["p50_ms"] <= found["p99_ms"] <= found["max_ms"] if "p50_ms" in found else True
    assert found["wal_bytes_per_job"] > 100
    assert found["transactions_per_job"] > 0
    assert found["cpu_us_per_job"]["client"] > 0
    assert found["cpu_us_per_job"]["server"] > 0
    assert found["server"].split(".")[0] == str(connection.get_server_version().major)
    assert found["fsync"] is False  # the tests' server
    assert found["synchronous_commit"] is True
    assert await schemas(connection) == []


class TestCosts:
    """Costs that do not depend on the machine."""

    def test_drained_job_costs_two_dead_rows_and_few_transactions(self, awa: Awa, database_url: str) -> None:
        found = measure(awa, database_url, "drain", "--jobs", "2000")
        assert found["jobs"] == 2000
        assert found["jobs_per_s"] == pytest.approx(2000 / found["seconds"], rel=0.01)
        assert min(found["thirds"]) <= found["jobs_per_s"] * 1.01
        assert max(found["thirds"]) >= found["jobs_per_s"] * 0.99
        assert 1.9 < found["dead_tuples_per_job"] < 2.2  # one in ready, one in running
        assert found["transactions_per_job"] < 0.5

    def test_enqueue_one_by_one_costs_a_transaction_per_job(self, awa: Awa, database_url: str) -> None:
        found = measure(awa, database_url, "enqueue", "--jobs", "200")
        assert 1 <= found["transactions_per_job"] < 3
        assert found["dead_tuples_per_job"] == 0

    def test_enqueue_of_100_per_transaction_costs_a_hundredth_of_one(self, awa: Awa, database_url: str) -> None:
        found = measure(awa, database_url, "enqueue", "--mode", "transaction", "--jobs", "1000")
        assert 0.01 <= found["transactions_per_job"] < 0.03
        assert found["options"] == {"mode": "transaction"}


class TestCostRecorder:
    async def cost_of(self, recorder: CostRecorder, database: Database, transactions: int) -> float:
        await recorder.start()
        other = await database.connect("test")
        for _ in range(transactions):
            await other.execute("SELECT 1")
        await other.close()
        for _ in range(50):
            await recorder.is_empty()
        await recorder.stop()
        return float((await recorder.costs(100)).transactions_per_job)

    async def test_recorder_does_not_count_its_own_transactions(self, database: Database) -> None:
        async with recording_costs(database) as recorder:
            assert await self.cost_of(recorder, database, 0) < 0.1
            assert 1.0 <= await self.cost_of(recorder, database, 100) < 1.1
            assert 1.0 <= await self.cost_of(recorder, database, 100) < 1.1

    async def test_recorder_counts_dead_rows(self, database: Database) -> None:
        async with recording_costs(database) as recorder:
            await recorder.start()
            other = await database.connect("test")
            await other.execute("INSERT INTO awa.queues (name) SELECT n::text FROM generate_series(1, 50) AS n")
            await other.execute("UPDATE awa.queues SET paused = true")
            await other.execute("DELETE FROM awa.queues")
            await other.close()
            await recorder.stop()
            assert (await recorder.costs(50)).dead_tuples_per_job == 2


WORKER_PROCESS = (("steady", "--seconds", "120"), "SELECT count(*) > 40 FROM {schema}.completed")
IN_PROCESS = (("drain", "--jobs", "5000", "--concurrency", "1"), "SELECT count(*) > 0 FROM {schema}.completed")
LONG_STATEMENT = (("drain", "--completed", "9000000"), "SELECT count(*) > 0 FROM {schema}.schema_version")


async def wait_until_running(connection: Connection, query: str) -> None:
    """Wait until the query is true in the schema of the benchmark."""

    async def is_running() -> bool:
        found = await schemas(connection)
        migrated = found and await connection.fetchval("SELECT to_regclass($1)", f"{found[0]}.schema_version")
        return bool(migrated and await connection.fetchval(query.format(schema=found[0])))

    await eventually("the benchmark runs", is_running, TIMEOUT_S)


@pytest.mark.parametrize(
    ("workload", "number", "repeated"),
    [
        (WORKER_PROCESS, signal.SIGTERM, False),
        (LONG_STATEMENT, signal.SIGINT, False),
        (IN_PROCESS, signal.SIGINT, True),
    ],
    ids=["worker process", "long statement", "worker in process, repeated signal"],
)
async def test_signal_leaves_nothing_behind(
    awa: Awa,
    database_url: str,
    connection: Connection,
    workload: tuple[tuple[str, ...], str],
    number: signal.Signals,
    repeated: bool,
) -> None:
    arguments, is_running = workload
    process = awa.start("bench", *arguments, "--json", "--database-url", database_url)
    try:
        await wait_until_running(connection, is_running)
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        while repeated and process.poll() is None:
            process.send_signal(number)
            await asyncio.sleep(0.02)
        out, err = await asyncio.to_thread(process.communicate, timeout=TIMEOUT_S)
    finally:
        process.kill()
    assert out == ""
    assert "Traceback" not in err
    if not repeated:
        assert (process.returncode, err) == (130, "Stopped. Nothing is left behind.\n")
    assert await schemas(connection) == []
    assert psutil.wait_procs(children, timeout=TIMEOUT_S)[1] == []


def on_a_terminal(*arguments: str) -> tuple[str, str]:
    """Return the standard output, and what a terminal that is standard error shows."""
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "awa_cli", "bench", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=terminal, text=True)
    os.close(terminal)
    shown = read_all(controller)
    out, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, shown
    return out, shown


async def test_concurrent_benchmarks_do_not_interfere_and_json_has_no_progress_bar(
    database_url: str, connection: Connection
) -> None:
    drain = ("drain", "--jobs", "500", "--database-url", database_url)
    (text, bar), (as_json, no_bar) = await asyncio.gather(
        asyncio.to_thread(on_a_terminal, *drain), asyncio.to_thread(on_a_terminal, *drain, "--json")
    )
    shown = {line.split("  ")[0]: line for line in text.splitlines()}
    assert shown.keys() >= {"workload", "jobs", "jobs per s", "thirds", "WAL per job", "CPU per job", "server"}
    assert "fsync off, synchronous_commit on" in shown["server"]
    assert " of 500" in bar
    assert json.loads(as_json)["jobs"] == 500
    assert no_bar == ""
    assert await schemas(connection) == []


async def test_database_of_the_environment_is_not_used(awa: Awa, tmp_path: Path) -> None:
    """AWA_DATABASE_URL names an unreachable server: the benchmark starts and removes a temporary one."""
    nowhere = {"AWA_DATABASE_URL": "postgresql://awa@127.0.0.1:1/x", "TMPDIR": str(tmp_path / "tmp")}
    (tmp_path / "tmp").mkdir()
    found = awa.ok("bench", "drain", "--jobs", "50", "--json", env=nowhere).json
    assert found["jobs_per_s"] > 0
    assert found["fsync"] is True
    assert list((tmp_path / "tmp").iterdir()) == []


NOWHERE = ("--database-url", "postgresql://awa@127.0.0.1:1/x")
WRONG = [
    (("bench", "drain", "--jobs", "0"), 2, "greater than or equal to"),
    (("bench", "drain", "--jobs", "many"), 2, "valid integer"),
    (("bench", "enqueue", "--mode", "two"), 2, "'producers'"),
    (("bench", "steady", "--rate", "0"), 2, "greater than or equal to"),
    (("bench", "speed"), 2, "No such command"),
    (("bench", "--json", "drain"), 2, "write the options of drain after its name"),
    (("bench", *NOWHERE), 1, "awa: cannot connect to the database"),
    (("bench", *NOWHERE, "latency"), 1, "awa: cannot connect to the database"),
    (("bench", "all", "--json", *NOWHERE), 1, "awa: cannot connect to the database"),
    (("bench", "drain", "--database-url", "mysql://x"), 1, "awa: the database URL must begin with postgresql://"),
]


@pytest.mark.parametrize(("arguments", "code", "sentence"), WRONG, ids=[" ".join(each) for each, *_ in WRONG])
def test_mistake_is_explained_in_a_sentence(awa: Awa, arguments: tuple[str, ...], code: int, sentence: str) -> None:
    answer = awa(*arguments)
    assert answer.code == code, answer.err
    assert sentence in answer.err
    assert answer.out == ""


def test_help_lists_every_workload(bare_awa: Awa) -> None:
    out = bare_awa.ok("bench", "--help", env={"COLUMNS": "80"}).out
    assert all(name in out for name in ("drain", "enqueue", "latency", "steady", "punctuality", "retries", "all"))
    assert all(len(line) <= 80 for line in out.splitlines())
    assert "AWA_BENCH_PINNED" in bare_awa.ok("bench", "drain", "--help").out
