"""`awa kinds`, and what the other commands know about kinds: declared options, arguments and unknown names."""

import pytest

from awa_py.connections import Connection
from tests.acceptance.conftest import Awa
from tests.acceptance.test_cli import columns

pytestmark = pytest.mark.integration

TASKS = """
import awa_py as awa

app = awa.App()


@app.job(queue="email", max_attempts=3, timeout="30s", concurrency_key="to:{to}", unique=awa.Unique(by=["to"]))
async def send(to: str, copies: int = 1) -> None: ...


@app.cron("0 9 * * *", name="digest")
@app.job(max_attempts=2)
async def digest() -> None: ...
"""


@pytest.fixture
def declared(awa: Awa) -> Awa:
    (awa.directory / "tasks.py").write_text(TASKS)
    awa.ok("kinds", "sync", "tasks:app", env={"AWA_WORKER_VERSION": "1"})
    return awa


def refusal(awa: Awa, *arguments: str) -> str:
    """Return the sentence with which a command is refused."""
    answer = awa(*arguments)
    assert answer.code == 1, answer
    return answer.err.removeprefix("awa: ")


def test_kinds_are_listed_shown_and_deleted(awa: Awa) -> None:
    assert awa.ok("kinds", "list").out == "no kinds: a worker declares its kinds when it starts\n"
    (awa.directory / "tasks.py").write_text(TASKS)
    awa.ok("worker", "tasks:app", "-q", "default", "--burst", "--worker-version", "1")
    lines = awa.ok("kinds", "list").out.splitlines()
    assert lines[0].split() == [
        "kind",
        "queue",
        "priority",
        "attempts",
        "timeout",
        "key",
        "unique",
        "version",
        "declared",
    ]
    assert [line.split()[0] for line in lines[1:]] == ["digest", "noop_echo", "send"]
    shown = awa.ok("kinds", "show", "send").out
    assert 'to: {"type": "string"}' in shown
    assert 'copies (optional): {"type": "integer"}' in shown
    assert awa.ok("kinds", "delete", "send").out == 'kind "send" is no longer declared\n'
    for command in ("show", "delete"):
        assert refusal(awa, "kinds", command, "send").startswith('nobody has declared the kind "send"')


async def test_json_has_the_columns_of_the_table(declared: Awa, connection: Connection) -> None:
    (digest, send) = declared.ok("kinds", "list", "--json").json
    assert digest["kind"] == "digest"
    assert send.keys() == await columns(connection, "kinds")
    assert (send["queue"], send["max_attempts"], send["timeout"], send["version"]) == ("email", 3, "30s", "1")
    assert declared.ok("kinds", "show", "send", "--json").json == send


def test_sync_makes_a_version_the_newest(declared: Awa) -> None:
    new = TASKS.replace("max_attempts=3", "max_attempts=5").replace("0 9", "0 10")

    def sync(version: str) -> str:
        return declared.ok("kinds", "sync", "tasks:app", env={"AWA_WORKER_VERSION": version}).out

    (declared.directory / "tasks.py").write_text(new)
    assert sync("2") == "version 2 is the newest; changed: digest, send, schedule digest\n"
    assert sync("2") == "version 2 is the newest; changed: nothing\n"
    (declared.directory / "tasks.py").write_text(TASKS)
    declared.ok("worker", "tasks:app", "-q", "default", "--burst", "--worker-version", "1")  # the old one restarts
    assert declared.ok("kinds", "show", "send", "--json").json["max_attempts"] == 5
    assert declared.ok("cron", "show", "digest", "--json").json["expression"] == "0 10 * * *"
    assert sync("1") == "version 1 is the newest; changed: digest, send, schedule digest\n"  # after a rollback
    assert declared.ok("kinds", "show", "send", "--json").json["max_attempts"] == 3


def test_enqueue_uses_the_declared_options(declared: Awa) -> None:
    job = declared.ok("enqueue", "send", '{"to": "a"}', "--json").json
    assert (job["queue"], job["max_attempts"], job["timeout"]) == ("email", 3, "30s")
    assert (job["concurrency_key"], job["concurrency_limit"]) == ("to:a", 1)
    again = declared.ok("enqueue", "send", '{"to": "a", "copies": 2}')
    assert again.out.split() == [str(job["id"])]
    assert "already holds this unique key" in again.err
    other = declared.ok("enqueue", "send", '{"to": "b"}', "--max-attempts", "9", "-q", "slow", "--json").json
    assert (other["queue"], other["max_attempts"], other["timeout"]) == ("slow", 9, "30s")


def test_arguments_that_do_not_fit_are_refused(declared: Awa) -> None:
    for command in (("enqueue",), ("cron", "set", "other", "@daily")):
        assert 'send: missing argument "to"' in refusal(declared, *command, "send")
        assert 'send: unexpected argument "cc"' in refusal(declared, *command, "send", '{"to": "a", "cc": 1}')
        assert 'send: argument "to" must be string, not number' in refusal(declared, *command, "send", '{"to": 1}')
    assert declared.ok("job", "list", "--json").json == []


def test_unknown_kind_is_a_warning(declared: Awa) -> None:
    warning = 'awa: no worker has declared the kind "sned" yet: its jobs wait for one that does\n'
    assert declared.ok("enqueue", "sned").err == warning
    assert declared.ok("cron", "set", "other", "@daily", "sned").err == warning
    assert declared.ok("enqueue", "send", '{"to": "a"}').err == ""


def test_schedule_of_an_operator_enqueues_what_the_code_declares(declared: Awa) -> None:
    declared.ok("cron", "set", "daily", "@daily", "send", '{"to": "a"}', "--priority", "1")
    job_id = declared.ok("cron", "trigger", "daily").out.strip()
    job = declared.ok("job", "show", job_id, "--json").json
    assert (job["queue"], job["max_attempts"], job["priority"]) == ("email", 3, 1)
    assert job["concurrency_key"] == "to:a"


def test_declared_schedule_cannot_be_changed_or_deleted(declared: Awa) -> None:
    refused = 'schedule "digest" is declared in code, by version 1 of the app'
    assert refusal(declared, "cron", "set", "digest", "@daily", "digest").startswith(refused)
    assert refusal(declared, "cron", "delete", "digest").startswith(refused)
    assert "set by version 1 of the app" in " ".join(declared.ok("cron", "show", "digest").out.split())
    declared.ok("cron", "pause", "digest")
    declared.ok("worker", "tasks:app", "-q", "default", "--burst", "--worker-version", "2")
    assert declared.ok("cron", "show", "digest", "--json").json["paused"]
    declared.ok("cron", "delete", "digest", "--force")
