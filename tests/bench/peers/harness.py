"""Run the cases: one server for all, a new database for each run, with the contenders in turn."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from awa_py.embedded import EmbeddedPostgres
from tests.bench.peers.commands import environment
from tests.bench.peers.environments import ROOT
from tests.bench.peers.plan import Case

RUN_TIMEOUT_S = 240
SETTLE_S = 0.5
SETTINGS = ("fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_wal_size", "autovacuum")


Command = Callable[[Case, str], list[str]]  # returns the command that runs a case on a database


@dataclass(frozen=True, slots=True)
class Run:
    """The result of one contender in one round."""

    workload: str
    key: str
    round: int
    params: dict[str, Any]
    result: dict[str, Any] = field(default_factory=dict)
    error: str = ""


@contextmanager
def server(url: str | None) -> Iterator[str]:
    """Yield the given URL, else that of an embedded PostgreSQL with its default, durable settings."""
    if url is not None:
        yield url
        return
    with EmbeddedPostgres() as embedded:
        yield embedded.url


def run_workload(url: str, cases: Sequence[Case], rounds: int, command: Command) -> Iterator[Run]:
    """Run all contenders in each round, in reverse order every other round, so that the order favours none."""
    for number in range(1, rounds + 1):
        for case in cases if number % 2 else reversed(cases):
            yield _run_case(url, case, number, command)


def server_facts(url: str) -> dict[str, str]:
    """Return the server's version and important settings."""

    async def query() -> dict[str, str]:
        connection = await asyncpg.connect(url)
        try:
            facts = {"version": await connection.fetchval("SHOW server_version")}
            return facts | {name: await connection.fetchval(f"SHOW {name}") for name in SETTINGS}
        finally:
            await connection.close()

    return asyncio.run(query())


def _run_case(url: str, case: Case, number: int, command: Command) -> Run:
    database = f"bench_{os.getpid()}"
    asyncio.run(
        _execute(
            url,
            f"DROP DATABASE IF EXISTS {database} WITH (FORCE)",
            f"CREATE DATABASE {database}",
            # If the user has the name of a contender's schema, the default search_path would put that schema first.
            f"ALTER DATABASE {database} SET search_path = public",
            "CHECKPOINT",
        )
    )
    time.sleep(SETTLE_S)
    try:
        case_url = _with_database(url, database)
        result = _run_process(command(case, case_url), case_url)
        return Run(case.workload, case.key, number, case.params, result)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return Run(case.workload, case.key, number, case.params, error=str(error))
    finally:
        asyncio.run(_execute(url, f"DROP DATABASE IF EXISTS {database} WITH (FORCE)"))


def _run_process(command: list[str], url: str) -> dict[str, Any]:
    """Return the JSON object that the contender prints. Raise RuntimeError if there is none."""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment(url),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=RUN_TIMEOUT_S)
    finally:
        _kill_group(process)
    start = out.find("{")
    if process.returncode != 0 or start < 0:
        raise RuntimeError((err.strip().splitlines() or [f"exit code {process.returncode}"])[-1][:300])
    result: dict[str, Any] = json.loads(out[start:])
    return result


def _kill_group(process: "subprocess.Popen[str]") -> None:
    """Kill what the contender left running: it would disturb the next measurement."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.communicate()


async def _execute(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


def _with_database(url: str, database: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path=f"/{database}"))


def runtime_versions() -> dict[str, str]:
    """Return the versions of Python and Node."""
    node = subprocess.run(["node", "--version"], capture_output=True, text=True, check=False) if _has_node() else None
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    return found | ({"node": node.stdout.strip().lstrip("v")} if node else {})


def _has_node() -> bool:
    return any(os.access(os.path.join(path, "node"), os.X_OK) for path in os.get_exec_path())
