"""`awa workers`: the list, and the commands to real workers."""

import json
import re
import subprocess
import time
from typing import Any
from uuid import UUID

import pytest

from awa_py.model.worker_name import short_id
from awa_py.store import workers
from awa_py.store.heartbeat import WorkerInfo, heartbeat_worker
from awa_py.store.session import Session
from tests.acceptance.conftest import Awa
from tests.support import OWNER, insert_queue, insert_running, new_owner, seconds

pytestmark = pytest.mark.integration

TIMEOUT_S = 30


def wait_for_workers(awa: Awa, number: int) -> list[dict[str, Any]]:
    deadline = time.monotonic() + TIMEOUT_S
    while len(found := awa.ok("workers", "--json").json) != number:
        assert time.monotonic() < deadline, found
    return list(found)


def wait_for_exit(worker: "subprocess.Popen[str]") -> str:
    """Wait until the worker exits with code 0, and return its log."""
    _, log = worker.communicate(timeout=TIMEOUT_S)
    assert worker.returncode == 0, log
    return log


def kill(worker: "subprocess.Popen[str]") -> None:
    worker.kill()
    worker.communicate()


async def insert_worker(session: Session, label: str | None, **more: Any) -> WorkerInfo:
    """Insert a worker that does nothing into the list of workers."""
    worker = WorkerInfo(
        id=more.pop("id", None) or new_owner(),
        hostname="here",
        pid=7,
        version="1",
        queues=("email",),
        kinds=("greet",),
        concurrency=3,
        label=label,
        limits=(2,),
    )
    await heartbeat_worker(session, worker, **more)
    return worker


class TestList:
    async def test_list_shows_all_columns(self, awa: Awa, session: Session) -> None:
        await insert_worker(session, "mail-worker-1.4-a")
        await insert_worker(session, None, id=OWNER, quiet=True)
        await insert_running(session, 2, worker_id=OWNER)
        await insert_queue(session, "email", max_workers=10)
        awa.ok("maintenance", "--once", "rebalance")
        header, first, second = awa.ok("workers").out.splitlines()
        assert " ".join(header.split()) == "worker host version queues slots kinds busy started heartbeat status"
        assert re.match(r"mail-worker-1.4-a +here:7 +1 +email +email 2/10 +1 +0/3 ", first)
        assert re.search(r"^00000000 .* 2/3 .*quiet$", second)  # F3: without a prefix, the id
        rows = awa.ok("workers", "--json").json
        assert [(row["label"], row["id"], row["running"], row["quiet"]) for row in rows] == [
            ("mail-worker-1.4-a", rows[0]["id"], 0, False),
            (None, str(OWNER), 2, True),
        ]
        assert [row["slots"] for row in rows] == [{"email": {"slots": 2, "max_workers": 10}}, {}]

    async def test_silent_worker_is_shown(self, awa: Awa, session: Session) -> None:
        await insert_worker(session, "mail-worker-a")
        await session.connection.execute("UPDATE awa.workers SET heartbeat_at = now() - interval '30 minutes'")
        assert awa.ok("workers").out.splitlines()[1].endswith("silent")
        printed = awa.ok("workers", "stop", "mail-worker-a").out
        assert printed == "worker mail-worker-a (here:7) will stop when it responds: its last heartbeat was 30m ago\n"

    def test_options_are_accepted_before_the_command(self, awa: Awa) -> None:
        awa.ok("migrate", "--schema", "second")
        assert awa.ok("workers").out == "no workers\n"
        for command in (("--schema", "second", "workers", "stop", "x"), ("workers", "--schema", "second", "stop", "x")):
            assert "no worker is registered" in awa(*command).err


class TestCommands:
    async def test_command_names_the_workers_that_it_reached(self, awa: Awa, session: Session) -> None:
        one, two = await insert_worker(session, "mail-worker-a"), await insert_worker(session, "mail-worker-b")
        other = await insert_worker(session, None)
        assert awa.ok("workers", "quiet", "mail-*").out == (
            "worker mail-worker-a (here:7) will be quiet\nworker mail-worker-b (here:7) will be quiet\n"
        )
        assert (
            awa.ok("workers", "resume", "mail-worker-a", str(one.id)[:8]).out
            == "worker mail-worker-a (here:7) will resume\n"
        )
        assert awa.ok("workers", "stop", str(other.id)).out == f"worker {other.id} (here:7) will stop\n"
        again = awa.ok("workers", "resume", str(other.id)).out
        assert again == f"worker {other.id} (here:7) is already stopping\n"
        rows = {row.id: (row.quiet, row.stopping) for row in await workers.list_workers(session, staleness=seconds(60))}
        assert rows == {one.id: (False, False), two.id: (True, False), other.id: (False, True)}

    async def test_unknown_worker_is_an_error_and_no_worker_is_told(self, awa: Awa, session: Session) -> None:
        await insert_worker(session, "mail-worker-a")
        answer = awa("workers", "stop", "mail-worker-a", "mail-worker-x")
        assert (answer.code, answer.out) == (1, "")
        assert answer.err == 'awa: there is no worker "mail-worker-x"; the workers are mail-worker-a\n'
        (row,) = awa.ok("workers", "--json").json
        assert not row["stopping"]


class TestRealWorkers:
    def test_label_comes_from_the_environment(self, awa: Awa) -> None:  # F2 F3
        env = {"AWA_QUEUES": "email", "AWA_WORKER_PREFIX": "mail", "AWA_WORKER_VERSION": " ", "AWA_WORKER_ID": ""}
        worker = awa.start("worker", "tasks:app", env=env)
        try:
            (row,) = wait_for_workers(awa, 1)
            assert re.fullmatch(r"mail-worker-[0-9a-f]{4}", row["label"])
            assert row["label"].endswith(short_id(UUID(row["id"])))
            assert awa.ok("workers", "stop", row["label"]).out.endswith("will stop\n")
            assert "was told to stop" in wait_for_exit(worker)  # exit code 0
        finally:
            kill(worker)
        assert awa.ok("workers", "--json").json == []

    def test_each_process_has_its_own_label_and_stops_alone(self, awa: Awa) -> None:  # F3
        worker = awa.start(
            *("worker", "tasks:app", "-q", "email", "--processes", "2"),
            *("--worker-prefix", "mail", "--worker-version", "1.4", "--worker-id", "a"),
        )
        try:
            rows = wait_for_workers(awa, 2)
            assert sorted(row["label"] for row in rows) == ["mail-worker-1.4-a-1", "mail-worker-1.4-a-2"]
            awa.ok("workers", "stop", "mail-worker-1.4-a-1")
            (left,) = wait_for_workers(awa, 1)
            assert left["label"] == "mail-worker-1.4-a-2"
            job = awa.ok("enqueue", "greet", '{"name": "me"}', "--queue", "email").out.strip()
            deadline = time.monotonic() + TIMEOUT_S
            while awa.ok("job", "show", job, "--json").json["state"] != "completed":
                assert time.monotonic() < deadline
                time.sleep(0.05)
            awa.ok("workers", "stop", "mail-*")
            log = wait_for_exit(worker)
        finally:
            kill(worker)
        assert "starts again" not in log

    def test_quiet_worker_claims_nothing_until_it_is_resumed(self, awa: Awa) -> None:
        worker = awa.start("worker", "tasks:app", "-q", "email", "--worker-prefix", "mail", "--log-format", "json")
        try:
            wait_for_workers(awa, 1)
            awa.ok("workers", "quiet", "mail-*")
            assert worker.stderr is not None
            while "is quiet" not in json.loads(worker.stderr.readline())["message"]:
                pass
            job = awa.ok("enqueue", "greet", '{"name": "me"}', "--queue", "email").out.strip()
            assert awa.ok("workers").out.splitlines()[1].endswith("quiet")
            assert awa.ok("job", "show", job, "--json").json["state"] == "available"
            awa.ok("workers", "resume", "mail-*")
            deadline = time.monotonic() + TIMEOUT_S
            while awa.ok("job", "show", job, "--json").json["state"] != "completed":
                assert time.monotonic() < deadline
                time.sleep(0.05)
            awa.ok("workers", "stop", "*")
            wait_for_exit(worker)
        finally:
            kill(worker)
