"""The command as each role's login: what may be done is done, and the rest is answered with a sentence."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import pytest

from tests.acceptance.conftest import Answer, Awa
from tests.roles import Installation, installation

pytestmark = pytest.mark.integration


@dataclass(frozen=True)
class Commands:
    """`awa`, as the administrator or as a new login."""

    awa: Awa
    installed: Installation

    def admin(self, *words: str) -> Answer:
        return self.awa(*words, env={"AWA_SCHEMA": self.installed.name})

    async def of(self, role: str) -> Callable[..., Answer]:
        """The command as a login of that role."""
        login = await self.installed.login(role)
        env = {"AWA_SCHEMA": self.installed.name, "AWA_DATABASE_URL": login.url}
        return lambda *words: self.awa(*words, env=env)


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
LOOKING = [
    ("job", "list"),
    ("job", "show", "1"),
    ("job", "explain", "1"),
    ("queue", "list"),
    ("cron", "list"),
    ("workers",),
    ("leader",),
    ("stats", "--json"),
    ("migrate",),  # there is nothing to do
]
CHANGING = [
    ("enqueue", "greet"),
    ("job", "cancel", "1"),
    ("job", "delete", "1", "--yes"),
    ("queue", "pause", "email"),
    ("maintenance", "--once", "cleanup"),
    WORKER,
]


async def test_a_reader_looks_and_is_told_what_more_would_take(commands: Commands) -> None:
    run = await commands.of("reader")
    for words in LOOKING:
        answer = run(*words)
        assert answer.code == 0, (words, answer.err)
    for words in CHANGING:
        answer = run(*words)
        assert answer.code == 1, words
        assert "permission denied for" in answer.err, (words, answer.err)
        assert f'"{commands.installed.name}_worker" to run jobs or to make changes' in answer.err, words


async def test_a_producer_enqueues_and_nothing_else(commands: Commands) -> None:
    run = await commands.of("producer")
    assert run("enqueue", "greet", '{"name": "y"}').out == "2\n"
    assert len(run("enqueue", "greet", "--count", "300").out.splitlines()) == 300
    for words in (("job", "list"), ("queue", "pause", "email"), WORKER):
        answer = run(*words)
        assert answer.code == 1, words
        assert "permission denied for" in answer.err, (words, answer.err)


async def test_a_worker_works_and_operates(commands: Commands) -> None:
    run = await commands.of("worker")
    for words in (WORKER, ("queue", "pause", "email"), ("maintenance", "--once", "cleanup"), ("stats",)):
        answer = run(*words)
        assert answer.code == 0, (words, answer.err)
    assert run("job", "show", "1", "--json").json["state"] == "completed"


def test_the_sql_of_the_roles_is_printed_and_nothing_changes(awa: Awa) -> None:
    answer = awa.ok("migrate", "--roles", "--sql", "--schema", "My Jobs")
    assert answer.out.startswith("BEGIN;")
    assert 'CREATE ROLE "My Jobs_producer" NOLOGIN' in answer.out
    assert "awa_" not in answer.out
    answer = awa("migrate", "--roles", "--status")
    assert answer.code == 2
    assert "either --roles or --status" in answer.err
