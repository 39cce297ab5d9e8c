"""`awa workers`, and what it tells real workers."""

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

PATIENCE_S = 30


def wait_for_workers(awa: Awa, number: int) -> list[dict[str, Any]]:
    deadline = time.monotonic() + PATIENCE_S
    while len(found := awa.ok("workers", "--json").json) != number:
        assert time.monotonic() < deadline, found
    return list(found)


def ended(worker: "subprocess.Popen[str]") -> str:
    """What it said, once it has ended by itself, well."""
    _, log = worker.communicate(timeout=PATIENCE_S)
    assert worker.returncode == 0, log
    return log


def kill(worker: "subprocess.Popen[str]") -> None:
    worker.kill()
    worker.communicate()


async def enter(session: Session, label: str | None, **more: Any) -> WorkerInfo:
    """A worker in the registry that does nothing."""
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


class TestTheList:
    async def test_it_shows_everything_about_a_worker(self, awa: Awa, session: Session) -> None:
        await enter(session, "mail-worker-1.4-a")
        await enter(session, None, id=OWNER, quiet=True)
        await insert_running(session, 2, worker_id=OWNER)
        await insert_queue(session, "email", max_workers=10)
        awa.ok("maintenance", "--once", "rebalance")
        header, first, second = awa.ok("workers").out.splitlines()
        assert " ".join(header.split()) == "worker host version queues slots kinds busy started beat status"
        assert re.match(r"mail-worker-1.4-a +here:7 +1 +email +email 2/10 +1 +0/3 ", first)
        assert re.search(r"^00000000 .* 2/3 .*quiet$", second)  # F3: without a prefix, the id
        rows = awa.ok("workers", "--json").json
        assert [(row["label"], row["id"], row["running"], row["quiet"]) for row in rows] == [
            ("mail-worker-1.4-a", rows[0]["id"], 0, False),
            (None, str(OWNER), 2, True),
        ]
        assert [row["slots"] for row in rows] == [{"email": {"slots": 2, "max_workers": 10}}, {}]

    async def test_silence_is_shown(self, awa: Awa, session: Session) -> None:
        await enter(session, "mail-worker-a")
        await session.connection.execute("UPDATE awa.workers SET heartbeat_at = now() - interval '30 minutes'")
        assert awa.ok("workers").out.splitlines()[1].endswith("silent")
        told = awa.ok("workers", "stop", "mail-worker-a").out
        assert told == "worker mail-worker-a (here:7) stops, once it is heard of: it has been silent for 30m\n"

    def test_options_may_stand_before_the_command(self, awa: Awa) -> None:
        awa.ok("migrate", "--schema", "second")
        assert awa.ok("workers").out == "no workers\n"
        for command in (("--schema", "second", "workers", "stop", "x"), ("workers", "--schema", "second", "stop", "x")):
            assert "no worker is registered" in awa(*command).err


class TestCommands:
    async def test_they_say_whom_they_reached(self, awa: Awa, session: Session) -> None:
        one, two = await enter(session, "mail-worker-a"), await enter(session, "mail-worker-b")
        other = await enter(session, None)
        assert awa.ok("workers", "quiet", "mail-*").out == (
            "worker mail-worker-a (here:7) is quiet\nworker mail-worker-b (here:7) is quiet\n"
        )
        assert (
            awa.ok("workers", "resume", "mail-worker-a", str(one.id)[:8]).out
            == "worker mail-worker-a (here:7) goes on\n"
        )
        assert awa.ok("workers", "stop", str(other.id)).out == f"worker {other.id} (here:7) stops\n"
        again = awa.ok("workers", "resume", str(other.id)).out
        assert again == f"worker {other.id} (here:7) stops: nothing changes that\n"
        rows = {row.id: (row.quiet, row.stopping) for row in await workers.list_workers(session, staleness=seconds(60))}
        assert rows == {one.id: (False, False), two.id: (True, False), other.id: (False, True)}

    async def test_an_unknown_one_is_answered_with_those_that_are_and_nothing_is_done(
        self, awa: Awa, session: Session
    ) -> None:
        await enter(session, "mail-worker-a")
        answer = awa("workers", "stop", "mail-worker-a", "mail-worker-x")
        assert (answer.code, answer.out) == (1, "")
        assert answer.err == 'awa: there is no worker "mail-worker-x"; the workers are mail-worker-a\n'
        (row,) = awa.ok("workers", "--json").json
        assert not row["stopping"]


class TestRealWorkers:
    def test_labels_come_from_the_environment(self, awa: Awa) -> None:  # F2 F3
        env = {"AWA_QUEUES": "email", "AWA_WORKER_PREFIX": "mail", "AWA_WORKER_VERSION": " ", "AWA_WORKER_ID": ""}
        worker = awa.start("worker", "tasks:app", env=env)
        try:
            (row,) = wait_for_workers(awa, 1)
            assert re.fullmatch(r"mail-worker-[0-9a-f]{4}", row["label"])
            assert row["label"].endswith(short_id(UUID(row["id"])))
            assert awa.ok("workers", "stop", row["label"]).out.endswith("stops\n")
            assert "was told to stop" in ended(worker)  # exit code 0
        finally:
            kill(worker)
        assert awa.ok("workers", "--json").json == []

    def test_each_of_several_processes_has_its_own_and_stops_alone(self, awa: Awa) -> None:  # F3
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
            deadline = time.monotonic() + PATIENCE_S
            while awa.ok("job", "show", job, "--json").json["state"] != "completed":
                assert time.monotonic() < deadline
            awa.ok("workers", "stop", "mail-*")
            log = ended(worker)
        finally:
            kill(worker)
        assert "starts again" not in log

    def test_a_quiet_one_takes_nothing_until_it_goes_on(self, awa: Awa) -> None:
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
            deadline = time.monotonic() + PATIENCE_S
            while awa.ok("job", "show", job, "--json").json["state"] != "completed":
                assert time.monotonic() < deadline
            awa.ok("workers", "stop", "*")
            ended(worker)
        finally:
            kill(worker)
