"""Commands as a login of each role: what is allowed, and the error for the rest."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import pytest

from tests.acceptance.conftest import Answer, Awa
from tests.roles import Installation, installation

pytestmark = pytest.mark.integration


@dataclass(frozen=True)
class Commands:
    """Run `awa` as the administrator or as a new login."""

    awa: Awa
    installed: Installation

    def admin(self, *arguments: str) -> Answer:
        return self.awa(*arguments, env={"AWA_SCHEMA": self.installed.name})

    async def as_role(self, role: str) -> Callable[..., Answer]:
        """Create a login with the role, and return a function that runs `awa` as it."""
        login = await self.installed.login(role)
        env = {"AWA_SCHEMA": self.installed.name, "AWA_DATABASE_URL": login.url}
        return lambda *arguments: self.awa(*arguments, env=env)


@pytest.fixture
async def commands(awa: Awa, database_url: str) -> AsyncIterator[Commands]:
    async with installation(database_url) as installed:
        commands = Commands(awa, installed)
        answer = commands.admin("migrate", "--roles")
        assert answer.code == 0, answer.err
        assert f"roles: {installed.name}_owner, {installed.name}_worker" in answer.out
        assert f'GRANT "{installed.name}_worker" TO' in answer.out
        assert commands.admin("enqueue", "greet", '{"name": "x"}', "--queue", "email").out == "1\n"
        yield commands


WORKER = ("worker", "tasks:app", "-q", "email", "--burst")
READING = [
    ("job", "list"),
    ("job", "show", "1"),
    ("job", "explain", "1"),
    ("queue", "list"),
    ("cron", "list"),
    ("workers",),
    ("leader",),
    ("stats", "--json"),
    ("migrate",),  # nothing to do
]
WRITING = [
    ("enqueue", "greet"),
    ("job", "cancel", "1"),
    ("job", "delete", "1", "--yes"),
    ("queue", "pause", "email"),
    ("maintenance", "--once", "cleanup"),
    WORKER,
]


async def test_reader_can_only_read(commands: Commands) -> None:
    run = await commands.as_role("reader")
    for command in READING:
        answer = run(*command)
        assert answer.code == 0, (command, answer.err)
    for command in WRITING:
        answer = run(*command)
        assert answer.code == 1, command
        assert "permission denied for" in answer.err, (command, answer.err)
        assert f'"{commands.installed.name}_worker" to run jobs or to make changes' in answer.err, command


async def test_producer_can_only_enqueue(commands: Commands) -> None:
    run = await commands.as_role("producer")
    assert run("enqueue", "greet", '{"name": "y"}').out == "2\n"
    assert len(run("enqueue", "greet", "--count", "300").out.splitlines()) == 300
    for command in (("job", "list"), ("queue", "pause", "email"), WORKER):
        answer = run(*command)
        assert answer.code == 1, command
        assert "permission denied for" in answer.err, (command, answer.err)


async def test_worker_can_work_and_operate(commands: Commands) -> None:
    run = await commands.as_role("worker")
    for command in (WORKER, ("queue", "pause", "email"), ("maintenance", "--once", "cleanup"), ("stats",)):
        answer = run(*command)
        assert answer.code == 0, (command, answer.err)
    assert run("job", "show", "1", "--json").json["state"] == "completed"


def test_migrate_roles_sql_prints_the_roles(awa: Awa) -> None:
    answer = awa.ok("migrate", "--roles", "--sql", "--schema", "My Jobs")
    assert answer.out.startswith("BEGIN;")
    assert 'CREATE ROLE "My Jobs_producer" NOLOGIN' in answer.out
    assert "awa_" not in answer.out
    answer = awa("migrate", "--roles", "--status")
    assert answer.code == 2
    assert "either --roles or --status" in answer.err
