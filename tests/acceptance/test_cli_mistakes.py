"""Mistakes of users are reported in one sentence with the right exit code, without a traceback."""

import subprocess
from pathlib import Path

import pytest

from tests.acceptance.conftest import Awa

pytestmark = pytest.mark.integration

WORKER = ("worker", "tasks:app", "-q", "default")

WRONG_USAGE = [
    (("nothing",), "No such command"),
    (("worker", "tasks:app"), "no queue: use -q NAME or AWA_QUEUES"),
    (("worker", "tasks:app", "-q", ""), "no queue: use -q NAME or AWA_QUEUES"),
    (("worker", "-q", "default"), "Missing argument 'APP'"),
    (("worker", "tasks:app", "-q", "=5"), "a queue's name cannot be empty"),
    (("worker", "tasks:app", "-q", "a,b"), "a queue's name cannot contain a comma"),
    (("worker", "tasks:app", "-q", "a=0"), "the limit must be a number of at least 1"),
    (("worker", "tasks:app", "-q", "a=many"), "the limit must be a number of at least 1"),
    ((*WORKER, "--worker-prefix", "a,b"), "the worker's prefix 'a,b'"),
    ((*WORKER, "--worker-prefix", "a", "--worker-id", "*"), "the worker's id '*'"),
    ((*WORKER, "--concurrency", "0"), "greater than or equal to 1"),
    ((*WORKER, "--shutdown-timeout", "soon"), '"soon" is not a duration'),
    ((*WORKER, "--metrics-port", "99999"), "65535"),
    ((*WORKER, "--allow-exec", "nowhere"), "'nowhere' does not exist"),
    ((*WORKER, "--allow-exec", "tasks.py"), "'tasks.py' is a file"),
    (
        ("maintenance", "--once", "magic"),
        'unknown task "magic": use one of promote, rescue, gone, deadlines',
    ),
    (("enqueue", "work", "{"), "invalid JSON"),
    (("job", "rewind", "1"), "--to"),
    (("job", "tree", "0"), "is not a job id"),
    (("job", "signal", "1", "go", "{"), "invalid JSON"),
    (("job", "signal", "1", "go", "NaN"), "NaN is not a JSON number"),
    (("enqueue", "work", "[1]"), "expected a JSON object"),
    (("enqueue", "work", '{"a": NaN}'), "NaN is not a JSON number"),
    (("enqueue", "work", "[" * 100_000), "invalid JSON"),
    (("enqueue", "work", "--at", "2030-01-01T00:00"), "has no UTC offset"),
    (("enqueue", "work", "--at", "tomorrow"), "is not a time"),
    (("enqueue", "work", "--at", "2030-01-01T00:00Z", "--delay", "5s"), "either --at or --delay"),
    (("enqueue", "work", "--delay", "999999999d"), "too long"),
    (("enqueue", "work", "--unique", "maybe"), "is not a duration"),
    (("enqueue", "work", "--priority", "5"), "less than or equal to 4"),
    (("enqueue", "work", "--embedded", "--database-url", "postgresql://x"), "either --database-url or --embedded"),
    (("enqueue", "work", "--key-limit", "2"), "--key-limit requires --key"),
    (("enqueue", "work", "--ordered"), "--ordered requires --key"),
    (("enqueue", "work", "--key", "k", "--key-limit", "0"), "greater than or equal to 1"),
    (("enqueue", "work", "--key", "k", "--key-limit", "2", "--ordered"), "--key-limit cannot be 2"),
    (("route", "set", "g*h", "gh"), "a star is allowed only at the end of a pattern"),
    (("route", "set", "", "gh"), "a route's pattern cannot be empty"),
    (("route", "set", "gh_*", "a,b"), "a queue's name cannot contain a comma"),
    (("route", "set", "gh_*"), "Missing argument 'QUEUE'"),
    (("route", "delete", "**"), "a star is allowed only at the end of a pattern"),
    (("job", "show", "first"), "is not a job id"),
    (("job", "show", "99999999999999999999"), "is not a job id"),
    (("job", "list", "--state", "gone"), "'scheduled'"),
    (("job", "list", "--log-level", "loud"), "'debug'"),
    (("queue", "set", "email"), "nothing to set"),
    (("queue", "set", "email", "--timeout", "0s"), "must be longer than 0"),
    (("queue", "set", "email", "--max-workers", "0"), "is not a number of jobs"),
    (("queue", "set", "email", "--max-workers", "9999999999"), "is not a number of jobs"),
    (("queue", "set", "email", "--rate", "fast"), '"fast" is not a rate'),
    (("queue", "set", "email", "--rate", "0/s"), "allows nothing"),
    (("queue", "set", "email", "--rate", "1/400d"), "too long"),
    (("queue", "set", "email", "--aging", "never"), "is not a duration"),
    (("queue", "pause", "email", "--for", "0s"), "longer than 0"),
    (("queue", "pause", "email", "--for", "1m", "--until", "2999-01-01T00:00Z"), "either --for or --until"),
    (("queue", "pause", "email", "--until", "2999-01-01T00:00"), "has no UTC offset"),
    (("workers", "stop"), "Missing argument 'LABEL'"),
    (("workers", "nonsense"), "No such command 'nonsense'"),
    (("migrate", "--sql", "--status"), "either --sql or --status"),
    (("migrate", "--from", "0"), "use --from and --to with --sql"),
    (("migrate", "--sql", "--roles", "--to", "1"), "use --from and --to with --sql and without --roles"),
    (("migrate", "--sql", "--from", "-1"), "greater than or equal to 0"),
    (("migrate", "--sql", "--from", "1", "--to", "9000"), "this program has the versions up to"),
    (("migrate", "--sql", "--from", "9000"), "--from 9000 is newer than version"),
]

FAILURES = [
    (("worker", "nowhere:app", "-q", "a"), 'there is no module "nowhere"'),
    (("worker", "tasks", "-q", "a"), "write module:attribute"),
    (("worker", "tasks.py:app", "-q", "a"), "name the module, not its file: tasks:app"),
    (("worker", "tasks:ap", "-q", "a"), "did you mean tasks:app?"),
    (("worker", "tasks:number", "-q", "a"), "is a int, not an awa.App"),
    (("worker", "broken:app", "-q", "a"), 'importing "broken" failed at'),
    ((*WORKER, "--schema", "missing"), "run `awa migrate`"),
    ((*WORKER, "--database-url", "mysql://x"), "must begin with postgresql://"),
    (("enqueue", ""), "a kind's name cannot be empty"),
    (("enqueue", "work", '{"a": "\\u0000"}'), "cannot be stored"),
    (("enqueue", "work", "--at", "9999-12-31T23:59:59-12:00"), "run_at must be between the years 1900 and 9000"),
    (("enqueue", "work", "--unique-key", ""), "a unique key has 1 to 1000 characters"),
    (("enqueue", "work", "--app", "tasks:app"), 'tasks:app has no job "work"; it has greet'),
    (("enqueue", "work", "--key", ""), "a concurrency key has 1 to 500 characters"),
    (("enqueue", "work", "--key", "c:{id}"), 'concurrency_key "c:{id}" names "id", which the job does not have'),
    (("route", "delete", "gh_*"), 'there is no route "gh_*": see `awa route list`'),
    (("job", "show", "12345"), "there is no job 12345"),
    (("job", "explain", "12345"), "there is no job 12345"),
    (("job", "signal", "12345", "go"), 'there is no job 12345: the signal "go" was not sent'),
    (("job", "signal", "12345", ""), "a signal's name cannot be empty"),
    (("job", "tree", "12345"), "there is no job 12345"),
    (("job", "rewind", "12345", "--to", "charge"), "there is no job 12345"),
    (("job", "rewind", "12345", "--to", "\udcff"), "there is no job 12345"),
    (("job", "cancel", "12345"), "there is no job 12345"),
    (("job", "list", "--kind", "\udcff"), "awa: "),
    (("queue", "show", "nowhere"), 'there is no queue "nowhere"'),
    (("queue", "unthrottle", "nowhere"), 'there is no queue "nowhere"'),
    (("workers", "stop", "nobody"), 'there is no worker "nobody"; no worker is registered'),
    (("workers", "quiet", "mail-*"), 'there is no worker "mail-*"; no worker is registered'),
    (("workers", "--schema", "missing", "resume", "x"), "run `awa migrate`"),
    (("cron", "set", "x", "0 0 30 2 *", "work"), "never fires"),
    (("cron", "set", "x", "0 0 * *", "work"), "it has 4 fields"),
    (("cron", "set", "x", "@daily", "work", "--timezone", "Berlin"), 'did you mean "Europe/Berlin"?'),
    (("cron", "set", "x" * 300, "@daily", "work"), "at most 200 characters"),
    (("cron", "preview", "61 * * * *"), '"61" is not a valid minute'),
    (("cron", "preview", "nowhere"), 'there is no schedule "nowhere"'),
    (("cron", "trigger", "nowhere"), 'there is no schedule "nowhere"'),
    (("cron", "pause", "nowhere"), 'there is no schedule "nowhere"'),
    (("cron", "delete", "nowhere"), 'there is no schedule "nowhere"'),
    (("job", "list", "--schema", "it's"), "a schema's name has"),
    (("job", "list", "--database-url", "postgresql://awa@127.0.0.1:1/x"), "cannot connect to the database"),
    (("job", "show", "1", "--database-url", "postgresql://awa@127.0.0.1:1/x"), "cannot connect to the database"),
    (("job", "list", "--database-url", "postgresql://awa@127.0.0.1:abc/x"), "the database URL cannot be parsed"),
]


@pytest.mark.parametrize(("command", "sentence"), WRONG_USAGE, ids=lambda value: " ".join(value)[:60])
def test_wrong_usage_exits_with_2(bare_awa: Awa, command: tuple[str, ...], sentence: str) -> None:  # F2
    answer = bare_awa(*command)
    assert (answer.code, answer.out) == (2, "")
    assert sentence in " ".join(answer.err.replace("│", " ").split())


@pytest.mark.parametrize(
    ("command", "sentence"), FAILURES, ids=lambda value: " ".join(value)[:60].encode("ascii", "replace")
)
def test_failure_exits_with_1(awa: Awa, command: tuple[str, ...], sentence: str) -> None:
    (awa.directory / "broken.py").write_text("import awa_py\napp = awa_py.App()\n1 / 0\n")
    answer = awa(*command)
    assert (answer.code, answer.out) == (1, "")
    assert sentence in answer.err
    assert answer.err.startswith("awa: ")
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "variable"),
    [(("--allow-exec", ""), None), (("--allow-exec", " \t"), None), (("--allow-exec", ""), "."), ((), ""), ((), " ")],
    ids=repr,
)
def test_blank_allow_exec_allows_no_commands(
    awa: Awa, options: tuple[str, ...], variable: str | None
) -> None:  # F2, F21
    program = awa.directory / "program"
    program.write_text("#!/bin/sh\ntouch ran\n")
    program.chmod(0o755)
    job_id = awa.ok("enqueue", "cmd_exec", '{"argv": ["./program"]}').out.strip()
    env = {} if variable is None else {"AWA_ALLOW_EXEC": variable}
    awa.ok(*WORKER, "--burst", *options, env=env)
    assert awa.ok("job", "show", job_id, "--json").json["state"] == "available"
    assert not (awa.directory / "ran").exists()
    awa.ok(*WORKER, "--burst", "--allow-exec", ".")
    assert (awa.directory / "ran").exists()


def test_missing_database_says_how_to_set_one(bare_awa: Awa) -> None:
    answer = bare_awa("job", "list", env={"AWA_DATABASE_URL": " ", "DATABASE_URL": ""})
    assert answer.code == 1
    assert "set AWA_DATABASE_URL" in answer.err


def test_password_is_not_printed(tmp_path: Path, zygote: "subprocess.Popen[str]") -> None:
    awa = Awa(tmp_path, "postgresql://awa:hush@127.0.0.1:1/x", zygote)
    answer = awa("job", "list")
    assert answer.code == 1
    assert "hush" not in answer.err


def test_invalid_setting_is_named(awa: Awa) -> None:
    answer = awa("job", "explain", "1", env={"AWA_HEARTBEAT_INTERVAL": "often"})
    assert answer.code == 1
    assert "AWA_HEARTBEAT_INTERVAL" in answer.err


def test_closed_pipe_prints_no_error(awa: Awa) -> None:
    awa.ok("enqueue", "work", "--count", "2000")
    # Unbuffered, a partial write would look complete to Python, and the closed pipe would go unnoticed.
    listing = awa.start("job", "list", "--json", "--limit", "2000", env={"PYTHONUNBUFFERED": ""})
    assert listing.stdout is not None
    assert listing.stderr is not None
    listing.stdout.read(1)
    listing.stdout.close()
    assert listing.stderr.read() == ""
    assert listing.wait(30) == 1
    listing.stderr.close()
    assert listing.stdin is not None
    listing.stdin.close()
