"""Every command against a real database."""

import json
import re
import signal
import socket
import subprocess
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from awa_py.connections import Connection
from awa_py.db.migrations import all_migrations
from awa_py.store import queues
from awa_py.store.finish import throttle_jobs
from awa_py.store.heartbeat import WorkerInfo, heartbeat_worker, remove_worker
from awa_py.store.session import Session
from tests.acceptance.conftest import Awa
from tests.support import OWNER, add_version, eventually, insert_running

NEWEST = all_migrations()[-1].version

pytestmark = pytest.mark.integration

VIEW = {
    *("id", "kind", "queue", "state", "priority", "attempt", "max_attempts", "args", "run_at", "created_at"),
    *("attempted_at", "finalized_at", "heartbeat_at", "deadline_at", "worker_id", "lease", "errors", "progress"),
    *("result", "tags", "metadata", "unique_key", "parent_id"),
}


async def columns(connection: Connection, table: str) -> set[str]:
    query = "SELECT column_name FROM information_schema.columns WHERE table_schema = 'awa' AND table_name = $1"
    return {row[0] for row in await connection.fetch(query, table)}


async def serve(session: Session, *queue_names: str, kinds: tuple[str, ...]) -> None:
    """Insert a worker that does nothing into the list of workers."""
    worker = WorkerInfo(id=OWNER, hostname="here", pid=7, version="1", queues=queue_names, kinds=kinds, concurrency=3)
    await remove_worker(session, OWNER)  # its queues and kinds are written only when it is inserted
    await heartbeat_worker(session, worker)


def test_version_is_printed(bare_awa: Awa) -> None:
    assert bare_awa.ok("--version").out == f"awa {version('awa-py')}\n"


def test_help_has_an_example_and_fits_80_columns(bare_awa: Awa) -> None:
    answer = bare_awa.ok("worker", "--help", env={"COLUMNS": "80"})
    assert "Example: awa worker" in answer.out
    assert all(len(line) <= 80 for line in answer.out.splitlines())
    assert "…" not in answer.out


def test_shell_completion_offers_states(bare_awa: Awa) -> None:
    asked = {"_AWA_COMPLETE": "complete_bash", "COMP_WORDS": "awa job list --state ", "COMP_CWORD": "4"}
    assert "retryable" in bare_awa(env=asked).out.split()


class TestMigrate:
    def test_migrate_applies_everything_once(
        self, tmp_path: Path, fresh_database_url: str, zygote: "subprocess.Popen[str]"
    ) -> None:
        awa = Awa(tmp_path, fresh_database_url, zygote)
        missing = awa("job", "list")
        assert missing.code == 1
        assert missing.err.startswith("awa: ")
        assert "run `awa migrate`" in missing.err
        assert all(step["applied_at"] is None for step in awa.ok("migrate", "--status", "--json").json)
        assert "applied 0001" in awa.ok("migrate").out
        assert "nothing to do" in awa.ok("migrate").out
        assert awa.ok("migrate", "--json").json == []
        steps = awa.ok("migrate", "--status", "--json").json
        assert [step["version"] for step in steps] == [migration.version for migration in all_migrations()]
        assert all(datetime.fromisoformat(step["applied_at"]).tzinfo for step in steps)

    def test_migrate_sql_needs_no_database(self, bare_awa: Awa) -> None:
        script = bare_awa.ok("migrate", "--sql", "--schema", "jobs").out
        assert 'CREATE SCHEMA IF NOT EXISTS "jobs"' in script
        assert 'CREATE VIEW "jobs".jobs' in script

    def test_migrate_sql_prints_what_the_database_lacks(
        self, tmp_path: Path, fresh_database_url: str, zygote: "subprocess.Popen[str]"
    ) -> None:
        awa = Awa(tmp_path, fresh_database_url, zygote)
        script = awa.ok("migrate", "--sql")
        assert script.err == ""
        assert script.out == awa.ok("migrate", "--sql", "--from", "0").out
        awa.ok("migrate")
        second = awa.ok("migrate", "--sql")
        assert (second.out, second.err) == ("", f'awa: schema "awa" is at version {NEWEST}: nothing to do\n')

    def test_migrate_sql_of_an_unreachable_database_fails(self, bare_awa: Awa) -> None:
        url = "postgresql://awa@127.0.0.1:1/x"
        answer = bare_awa("migrate", "--sql", "--database-url", url)
        assert (answer.code, answer.out) == (1, "")
        assert "cannot connect to the database" in answer.err
        assert bare_awa.ok("migrate", "--sql", "--from", "0", "--database-url", url).out

    def test_migrate_sql_without_a_database_says_so(self, bare_awa: Awa) -> None:
        answer = bare_awa.ok("migrate", "--sql")
        assert answer.out == bare_awa.ok("migrate", "--sql", "--from", "0", "--to", str(NEWEST)).out
        assert "no database is named" in answer.err

    async def test_program_older_than_the_schema_names_the_release_it_needs(self, awa: Awa, session: Session) -> None:
        await add_version(session, 9000, compatible=True)
        awa.ok("enqueue", "greet", '{"name": "me"}', "--queue", "email")
        awa.ok("worker", "tasks:app", "-q", "email", "--burst")
        assert "is at version 9000: nothing to do" in awa.ok("migrate").out
        await add_version(session, 9001, compatible=False)
        for command in (("job", "list"), ("worker", "tasks:app", "-q", "email", "--burst"), ("migrate",)):
            answer = awa(*command)
            assert answer.code == 1
            assert answer.err.splitlines()[-1].endswith("upgrade awa-py to 9.1 or newer")

    def test_schemas_are_independent(self, awa: Awa) -> None:
        awa.ok("migrate", "--schema", "second")
        awa.ok("enqueue", "work", "--schema", "second")
        assert len(awa.ok("job", "list", "--json", env={"AWA_SCHEMA": "second"}).json) == 1
        assert len(awa.ok("--schema", "second", "job", "list", "--json").json) == 1
        assert awa.ok("job", "list", "--json").json == []


class TestEnqueue:
    def test_enqueue_prints_the_id(self, awa: Awa) -> None:
        job_id = awa.ok("enqueue", "greet", '{"name": "me"}', "--queue", "email", "--priority", "1").out.strip()
        job = awa.ok("job", "show", job_id, "--json").json
        assert (job["kind"], job["queue"], job["priority"], job["args"]) == ("greet", "email", 1, {"name": "me"})

    def test_enqueue_reads_standard_input(self, awa: Awa) -> None:
        job_id = awa.ok("enqueue", "greet", "-", stdin='{"name": "you"}').out.strip()
        assert awa.ok("job", "show", job_id, "--json").json["args"] == {"name": "you"}

    def test_enqueue_count_adds_several_jobs(self, awa: Awa) -> None:
        ids = awa.ok("enqueue", "work", "--count", "3").out.split()
        assert len(set(ids)) == 3

    def test_enqueue_options_are_stored(self, awa: Awa) -> None:
        job = awa.ok(
            *("enqueue", "work", "--at", "2030-01-01T00:00+01:00", "--max-attempts", "3", "--timeout", "90s"),
            *("--deadline", "2031-01-01T00:00Z", "--tag", "a", "--tag", "b", "--meta", '{"x": 1}', "--json"),
        ).json
        assert job.keys() >= VIEW
        assert job["state"] == "scheduled"
        assert datetime.fromisoformat(job["run_at"]) == datetime.fromisoformat("2029-12-31T23:00+00:00")
        assert (job["max_attempts"], job["timeout"], job["tags"]) == (3, "1m30s", ["a", "b"])
        assert job["metadata"] == {"x": 1}

    @pytest.mark.parametrize("how", [("--unique", "1h"), ("--unique", "yes"), ("--unique-key", "k")])
    def test_duplicate_unique_key_names_the_job_that_holds_it(self, awa: Awa, how: tuple[str, str]) -> None:
        first = awa.ok("enqueue", "work", "{}", *how)
        second = awa.ok("enqueue", "work", "{}", *how)
        assert second.out == first.out
        assert second.err.endswith(f"awa: job {first.out.strip()} already holds this unique key\n")

    def test_enqueue_with_a_concurrency_key(self, awa: Awa) -> None:
        job = awa.ok("enqueue", "work", '{"id": 7}', "--key", "customer:{id}", "--key-limit", "2", "--json").json
        assert (job["concurrency_key"], job["concurrency_limit"], job["ordered"]) == ("customer:7", 2, False)
        first, *_, last = awa.ok("enqueue", "work", "--key", "k", "--ordered", "--count", "3").out.split()
        job = awa.ok("job", "show", first, "--json").json
        assert (job["concurrency_key"], job["concurrency_limit"], job["ordered"]) == ("k", 1, True)
        shown = [line.split() for line in awa.ok("job", "show", first).out.splitlines()]
        assert [line for line in shown if line[:1] in (["concurrency"], ["ordered"])] == [
            ["concurrency", "key", "k"],
            ["concurrency", "limit", "1"],
            ["ordered", "yes"],
        ]
        explanation = awa.ok("job", "explain", last).out
        assert f'Its concurrency key "k" is ordered: job {first} (available) must end first.' in explanation
        assert '2 jobs with its concurrency key "k" are ahead of it.' in explanation

    def test_enqueue_with_an_app_checks_arguments_and_uses_its_queue(self, awa: Awa) -> None:
        wrong = awa("enqueue", "greet", '{"nam": "me"}', "--app", "tasks:app")
        assert wrong.code == 1
        assert '"nam' in wrong.err
        job = awa.ok("enqueue", "greet", '{"name": "me"}', "--app", "tasks:app", "--json").json
        assert job["queue"] == "email"


class TestWorker:
    def test_job_can_enqueue_another_job(self, awa: Awa) -> None:
        awa.ok("enqueue", "hand_on", '{"name": "you"}')
        awa.ok("worker", "tasks:app", "-q", "default", "-q", "email", "--burst")
        jobs = awa.ok("job", "list", "--json").json
        assert [(job["kind"], job["state"], job["result"]) for job in jobs] == [
            ("greet", "completed", "hello you"),
            ("hand_on", "completed", None),
        ]

    def test_burst_runs_due_jobs_and_exits(self, awa: Awa) -> None:  # F2
        done = awa.ok("enqueue", "greet", '{"name": "me"}', "--app", "tasks:app").out.strip()
        broken = awa.ok("enqueue", "break_down", "--app", "tasks:app").out.strip()
        worker = awa.run("worker", "tasks:app", "--burst", env={"AWA_QUEUES": " email=2, ,default, email "})
        assert worker.code == 0, worker.err
        assert "serves email, default with 100 slots" in worker.err
        job = awa.ok("job", "show", done, "--json").json
        assert (job["state"], job["result"]) == ("completed", "hello me")
        failed = awa.ok("job", "show", broken, "--json").json
        assert failed["state"] == "failed"
        assert "it broke" in failed["errors"][0]["error"]
        assert failed["errors"][0]["exception"] == "builtins.ValueError"
        shown = awa.ok("job", "show", broken).out
        assert f"attempt 1 on {socket.gethostname()}:" in shown
        assert ", in break_down\n" in shown
        assert "It failed 20" in awa.ok("job", "explain", broken).out
        assert [row["name"] for row in awa.ok("cron", "list", "--json").json] == ["digest"]

    def test_signal_ends_a_worker_with_exit_code_0(self, awa: Awa) -> None:
        worker = awa.start("worker", "tasks:app", "-q", "default", "--log-format", "json")
        assert worker.stderr is not None
        first = json.loads(worker.stderr.readline())
        assert first.keys() == {"time", "level", "logger", "message", "worker"}
        listed = awa.ok("workers", "--json").json
        assert [row["pid"] for row in listed] == [worker.pid]
        worker.send_signal(signal.SIGTERM)
        worker.communicate(timeout=30)
        assert worker.returncode == 0
        assert awa.ok("workers", "--json").json == []

    def test_signal_ends_a_worker_without_a_database(self, awa: Awa) -> None:
        unreachable = "postgresql://awa@127.0.0.1:1/unreachable"
        worker = awa.start("worker", "tasks:app", "-q", "default", "--database-url", unreachable)
        assert worker.stderr is not None
        assert "cannot reach the database" in worker.stderr.readline()
        worker.send_signal(signal.SIGTERM)
        worker.communicate(timeout=30)
        assert worker.returncode == 0

    def test_several_processes_share_the_work(self, awa: Awa) -> None:
        job_id = awa.ok("enqueue", "greet", '{"name": "me"}', "-q", "email").out.strip()
        awa.ok("worker", "tasks:app", "-q", "email", "--processes", "2", "--burst")
        assert awa.ok("job", "show", job_id, "--json").json["state"] == "completed"

    def test_built_in_kinds_run(self, awa: Awa) -> None:  # F21
        echo = awa.ok("enqueue", "noop_echo", '{"hello": "world"}').out.strip()
        (awa.directory / "hello").write_text("#!/bin/sh\necho hello $1\n")
        (awa.directory / "hello").chmod(0o755)
        command = awa.ok("enqueue", "cmd_exec", '{"argv": ["./hello", "you"]}').out.strip()
        awa.ok("worker", "tasks:app", "-q", "default", "--burst")
        assert awa.ok("job", "show", echo, "--json").json["result"] == {"hello": "world"}
        assert awa.ok("job", "show", command, "--json").json["state"] == "available"
        awa.ok("worker", "tasks:app", "-q", "default", "--burst", "--allow-exec", ".")
        assert awa.ok("job", "show", command, "--json").json["result"] == {"exit_code": 0, "output": "hello you\n"}


class TestMaintenance:
    def test_maintenance_once_runs_one_task(self, awa: Awa) -> None:  # F18
        assert awa.ok("maintenance", "tasks:app", "--once", "cron-sync").out == "cron-sync: 1 changed schedule\n"
        assert awa.ok("maintenance", "--once", "promote").out == "promote: nothing to do\n"
        assert awa.ok("maintenance", "--once", "rescue", "--json").json == {
            "task": "rescue",
            "changed": 0,
            "rescued_jobs": [],
            "expired_jobs": 0,
            "removed_workers": 0,
        }

    async def test_maintenance_leads_until_a_signal_arrives(self, awa: Awa, connection: Connection) -> None:
        assert awa.ok("leader", "--json").json is None
        assert "there is no leader" in awa.ok("leader").out
        process = awa.start("maintenance")
        leader = await eventually(lambda: awa.ok("leader", "--json").json)
        assert leader["pid"] == process.pid
        assert leader.keys() == await columns(connection, "leader") - {"singleton"}
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
        assert process.returncode == 0
        assert awa.ok("leader", "--json").json is None


class TestJob:
    def test_job_list_filters_and_pages(self, awa: Awa) -> None:
        awa.ok("enqueue", "one", "-q", "a", "--tag", "t")
        later = int(awa.ok("enqueue", "two", "-q", "b", "--delay", "1h").out)

        def kinds(*options: str) -> list[str]:
            return [job["kind"] for job in awa.ok("job", "list", "--json", *options).json]

        assert kinds() == ["two", "one"]
        assert kinds("--state", "scheduled") == kinds("--queue", "b") == kinds("--limit", "1") == ["two"]
        assert kinds("--tag", "t") == kinds("--kind", "one") == kinds("--before", str(later)) == ["one"]
        assert kinds("--state", "scheduled", "--state", "available") == ["two", "one"]
        table = awa.ok("job", "list").out.splitlines()
        assert table[0].split()[:4] == ["id", "state", "kind", "queue"]
        assert re.search(r"\bdue in (5\d|60)m\b", table[1])

    def test_empty_job_list_says_so(self, awa: Awa) -> None:
        assert awa.ok("job", "list").out == "no jobs\n"
        assert awa.ok("job", "list", "--json").json == []

    def test_job_list_fits_a_narrow_terminal(self, awa: Awa) -> None:
        awa.ok(
            "enqueue", "a_kind_with_a_rather_long_name_that_does_not_fit", "-q", "a_queue_with_a_long_name", "-n", "2"
        )
        lines = awa.ok("job", "list", env={"COLUMNS": "80"}).out.splitlines()
        assert len(lines) == 3
        assert all(len(line) <= 80 for line in lines)

    def test_cancel_retry_and_delete_a_job(self, awa: Awa) -> None:
        job_id = awa.ok("enqueue", "work").out.strip()
        assert awa.ok("job", "cancel", job_id).out == f"job {job_id}: cancelled\n"
        again = awa("job", "cancel", job_id)
        assert (again.code, again.err) == (1, f"awa: job {job_id} is cancelled: nothing was changed\n")
        assert "It was cancelled" in awa.ok("job", "explain", job_id).out
        assert awa.ok("job", "retry", job_id).out == f"job {job_id}: available\n"
        assert awa("job", "delete", job_id, stdin="n\n").code == 1
        assert awa.ok("job", "delete", job_id, "--yes").out == f"job {job_id}: deleted\n"
        gone = awa("job", "show", job_id)
        assert (gone.code, gone.err[:24]) == (1, f"awa: there is no job {job_id}: i"[:24])

    async def test_explain_names_the_reason(self, awa: Awa, session: Session) -> None:
        job_id = awa.ok("enqueue", "greet", "-q", "email").out.strip()

        def reasons() -> Any:
            return " ".join(awa.ok("job", "explain", job_id, "--json").json["reasons"])

        assert "No worker is alive" in reasons()
        await serve(session, "other", kinds=("greet",))
        assert 'No live worker serves its queue "email"' in reasons()
        await serve(session, "email", kinds=("other",))
        assert 'has a handler for kind "greet"' in reasons()
        await serve(session, "email", kinds=("greet",))
        assert "It is next in line" in reasons()
        await queues.pause_queue(session, "email", paused=True)
        assert 'Its queue "email" is paused' in reasons()

    def test_explain_counts_the_jobs_ahead(self, awa: Awa) -> None:
        awa.ok("enqueue", "work", "--count", "2")
        last = awa.ok("enqueue", "work").out.strip()
        assert '2 jobs are ahead of it in its queue "default"' in awa.ok("job", "explain", last).out
        later = awa.ok("enqueue", "work", "--delay", "3h").out.strip()
        text = awa.ok("job", "explain", later).out
        assert "It is scheduled for" in text
        assert "There is no leader" in text


class TestQueue:
    async def test_queue_settings_stay_until_they_are_set_again(self, awa: Awa, connection: Connection) -> None:
        awa.ok("queue", "set", "email", "--no-backoff", "--timeout", "5m", "--retention-completed", "0s")
        queue = awa.ok("queue", "show", "email", "--json").json
        assert queue.keys() >= await columns(connection, "queues")
        assert (queue["backoff_enabled"], queue["timeout"], queue["completed_retention"]) == (False, "5m", "0s")
        awa.ok("queue", "set", "email", "--backoff", "--timeout", "default")
        queue = awa.ok("queue", "list", "--json").json[0]
        assert (queue["backoff_enabled"], queue["timeout"], queue["completed_retention"]) == (True, None, "0s")

    def test_queue_is_paused_and_resumed(self, awa: Awa) -> None:
        assert awa.ok("queue", "pause", "email", "--for", "10m").out == 'queue "email" is paused for 10m\n'
        queue = awa.ok("queue", "show", "email", "--json").json
        assert queue["paused"]
        assert queue["paused_until"] is not None
        awa.ok("queue", "resume", "email")
        assert not awa.ok("queue", "show", "email", "--json").json["paused"]

    def test_pause_until_shows_the_end_of_the_pause(self, awa: Awa) -> None:
        printed = awa.ok("queue", "pause", "email", "--until", "2999-01-31T09:00+01:00").out
        assert printed == 'queue "email" is paused until 2999-01-31T09:00:00+01:00\n'
        assert awa.ok("queue", "show", "email", "--json").json["paused_until"] == "2999-01-31T08:00:00+00:00"
        for wrong, sentence in (
            ("2020-01-01T00:00+01:00", "--until is in the past"),
            ("9999-12-31T23:59:59-12:00", "--until is too far in the future"),
        ):
            answer = awa("queue", "pause", "email", "--until", wrong)
            assert answer.code == 2
            assert sentence in answer.err
        assert awa.ok("queue", "show", "email", "--json").json["paused_until"] == "2999-01-31T08:00:00+00:00"

    async def test_queue_limits_are_set_and_shown(self, awa: Awa, session: Session) -> None:  # F1
        awa.ok("queue", "set", "gh", "--max-workers", "8", "--rate", "5000/h", "--aging", "off")
        queue = awa.ok("queue", "show", "gh", "--json").json
        assert (queue["max_workers"], queue["rate_jobs"], queue["rate_period"]) == (8, 5000, "1h")
        assert queue["aging"] == "0s"
        # ensure_queues must not overwrite settings.
        await queues.ensure_queues(session, ["gh", "slack"])
        assert awa.ok("queue", "show", "gh", "--json").json == queue
        shown = awa.ok("queue", "show", "gh").out
        assert re.search(r"max workers +8\nrate +5000/h\naging +off\n", shown), shown
        assert re.search(r"workers +max +rate +aging", awa.ok("queue", "list").out)
        awa.ok("queue", "set", "gh", "--max-workers", "default", "--rate", "default", "--aging", "default")
        queue = awa.ok("queue", "show", "gh", "--json").json
        assert [queue[name] for name in ("max_workers", "rate_jobs", "rate_period", "aging")] == [None] * 4
        assert not re.search(r"max|rate|aging", awa.ok("queue", "list").out)

    async def test_queue_show_lists_its_workers(self, awa: Awa, session: Session) -> None:
        await serve(session, "gh", "slack", kinds=("work",))
        await session.connection.execute("INSERT INTO awa.slots VALUES ('gh', $1, 4)", OWNER)
        await insert_running(session, 2, queue="gh")
        assert awa.ok("queue", "show", "gh", "--json").json["distribution"] == [
            {"id": str(OWNER), "label": None, "hostname": "here", "pid": 7, "slots": 4, "running": 2}
        ]
        assert re.search(r"\n00000000 +here:7 +4 +2 +0", awa.ok("queue", "show", "gh").out)

    async def test_throttled_queue_is_shown_and_unthrottled(self, awa: Awa, session: Session) -> None:  # F10
        jobs = await insert_running(session, 2, queue="gh")
        await throttle_jobs(session, OWNER, jobs, [1, 1], ["429", "429"])
        queue = awa.ok("queue", "show", "gh", "--json").json
        assert (queue["throttled"], queue["throttles"], queue["throttle_reason"]) == (True, 1, "429")
        assert re.search(
            r"throttled +until .* UTC \(in .*\), 1 time in a row: 429\n", awa.ok("queue", "show", "gh").out
        )
        assert re.search(r"throttled, \d+[sm] left", awa.ok("queue", "list").out)
        assert awa.ok("queue", "unthrottle", "gh").out == 'queue "gh" is not throttled: 2 jobs released\n'
        assert not awa.ok("queue", "show", "gh", "--json").json["throttled"]
        assert awa.ok("queue", "unthrottle", "gh").out == 'queue "gh" is not throttled\n'

    def test_purge_asks_for_confirmation(self, awa: Awa) -> None:
        awa.ok("enqueue", "work", "-q", "bulk", "--count", "3")
        awa.ok("enqueue", "work", "-q", "bulk", "--delay", "1h")
        assert awa("queue", "purge", "bulk", stdin="n\n").code == 1
        assert 'queue "bulk": 4 jobs deleted' in awa.ok("queue", "purge", "bulk", stdin="y\n").out


class TestRoute:  # F4
    def test_route_is_set_listed_and_deleted(self, awa: Awa) -> None:
        assert awa.ok("route", "list").out == "no routes\n"
        assert awa.ok("route", "list", "--json").json == []
        printed = awa.ok("route", "set", "gh_*", "gh").out
        assert printed == 'jobs whose kind begins with "gh_" go to queue "gh", unless they name a queue\n'
        awa.ok("route", "set", "gh_*", "github")
        awa.ok("route", "set", "gh_ping", "quick")
        routes = awa.ok("route", "list", "--json").json
        assert [(route["pattern"], route["queue"]) for route in routes] == [("gh_*", "github"), ("gh_ping", "quick")]
        assert all(datetime.fromisoformat(route["updated_at"]).tzinfo for route in routes)
        assert awa.ok("route", "list").out.splitlines()[1].split()[:2] == ["gh_*", "github"]
        assert awa.ok("route", "delete", "gh_ping").out == 'route "gh_ping" is deleted\n'
        assert len(awa.ok("route", "list", "--json").json) == 1

    def test_job_without_a_queue_follows_the_route(self, awa: Awa) -> None:
        awa.ok("route", "set", "g*", "routed")

        def queue(*arguments: str) -> Any:
            return awa.ok("enqueue", *arguments, "--json").json["queue"]

        assert queue("gh_issue") == "routed"
        assert queue("gh_issue", "-q", "mine") == "mine"
        assert queue("greet", '{"name": "me"}', "--app", "tasks:app") == "email"  # declared by the job
        assert queue("hand_on", '{"name": "me"}', "--app", "tasks:app") == "default"
        awa.ok("cron", "set", "sync", "@daily", "gh_sync")
        job_id = awa.ok("cron", "trigger", "sync").out.strip()
        assert awa.ok("job", "show", job_id, "--json").json["queue"] == "routed"


class TestCron:
    async def test_schedule_is_set_paused_triggered_and_deleted(self, awa: Awa, connection: Connection) -> None:
        awa.ok("cron", "set", "tick", "*/5 * * * *", "greet", '{"name": "cron"}', "-q", "email", "--misfire", "skip")
        assert (
            "is unchanged"
            in awa.ok(
                *("cron", "set", "tick", "*/5 * * * *", "greet", '{"name": "cron"}', "-q", "email", "--misfire", "skip")
            ).out
        )
        assert awa.ok("cron", "show", "tick", "--json").json.keys() == await columns(connection, "cron")
        awa.ok("cron", "pause", "tick")
        assert awa.ok("cron", "list", "--json").json[0]["paused"]
        awa.ok("cron", "resume", "tick")
        job = awa.ok("job", "show", awa.ok("cron", "trigger", "tick").out.strip(), "--json").json
        assert (job["kind"], job["queue"], job["args"]) == ("greet", "email", {"name": "cron"})
        assert len(awa.ok("cron", "preview", "tick", "--count", "4", "--json").json) == 4
        awa.ok("cron", "delete", "tick")
        assert awa.ok("cron", "list").out == "no schedules\n"

    @pytest.mark.parametrize(
        ("after", "times", "change"),
        [
            ("2026-03-28T12:00Z", ["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"], "1h"),
            ("2026-10-25T00:45Z", ["2026-10-26T02:30:00+01:00", "2026-10-27T02:30:00+01:00"], "-1h"),
        ],
    )
    def test_preview_shows_a_clock_change(self, bare_awa: Awa, after: str, times: list[str], change: str) -> None:
        command = ("cron", "preview", "30 2 * * *", "--timezone", "Europe/Berlin", "--after", after, "--count", "2")
        fires = bare_awa.ok(*command, "--json", env={"TZ": "America/New_York"}).json
        assert [fire["at"] for fire in fires] == times
        assert [fire["clock_change"] for fire in fires] == [change, None]
        assert fires[0]["local_at"].endswith("-04:00")
        table = bare_awa.ok(*command).out
        assert ("clocks went forward 1h" if change == "1h" else "clocks went back 1h") in table.splitlines()[1]


class TestStats:
    def test_stats_counts_jobs_by_state_and_queue(self, awa: Awa) -> None:
        awa.ok("enqueue", "work", "--count", "3")
        awa.ok("enqueue", "work", "--delay", "1h")
        stats = awa.ok("stats", "--json").json
        assert (stats["states"]["available"], stats["states"]["scheduled"]) == (3, 1)
        assert stats["queues"][0]["counts"] == {"available": 3, "scheduled": 1}
        assert (stats["workers"], stats["leader"]) == (0, None)
        assert "available     3" in awa.ok("stats").out

    def test_stats_watch_ends_with_ctrl_c(self, awa: Awa) -> None:
        watch = awa.start("stats", "--watch", "--json")
        assert watch.stdout is not None
        for _ in range(2):
            assert json.loads(watch.stdout.readline())["states"]["available"] == 0
        watch.send_signal(signal.SIGINT)
        _, err = watch.communicate(timeout=30)
        assert (watch.returncode, err) == (0, "")


def test_embedded_server_keeps_its_data(bare_awa: Awa, tmp_path: Path) -> None:
    home = str(tmp_path / "postgres")
    job_id = bare_awa.ok("enqueue", "work", "--embedded-dir", home).out.strip()
    jobs = bare_awa.ok("job", "list", "--json", env={"AWA_EMBEDDED_DIR": home}).json
    assert [str(job["id"]) for job in jobs] == [job_id]
