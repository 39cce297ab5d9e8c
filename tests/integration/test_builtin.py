"""The built-in kinds (F21), with real programs."""

import asyncio
import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import uvloop

from awa_py import App, ConfigError, Job, State, Throttled
from awa_py.builtin import add_builtin, command_runner
from awa_py.builtin.commands import Commands
from awa_py.builtin.echo import noop_echo
from awa_py.maintenance.unserved import Unserved
from awa_py.model.outcomes import Fail
from awa_py.observability.metrics import Metrics
from awa_py.store.session import Session
from tests.programs import FAMILIES, MARK, Root
from tests.support import ago, drain, eventually, insert, look, run_one, seconds, working

pytestmark = pytest.mark.integration


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Root]:
    root = Root.within(tmp_path)
    yield root
    for process in root.processes():
        process.kill()


@pytest.fixture
def app(app: App, root: Root) -> App:
    add_builtin(app.registry, exec_root=root.path, max_result_bytes=app.settings.max_args_bytes)
    return app


FORBIDDEN_VARIABLES = (
    *(
        "LD_PRELOAD",
        "DYLD_INSERT_LIBRARIES",
        "GCONV_PATH",
        "_JAVA_OPTIONS",
        "PATH",
        "CLASSPATH",
        "LUA_PATH",
        "AWKLIBPATH",
    ),
    *("ENV", "BASH_ENV", "SHELLOPTS", "IFS", "PS4", "PROMPT_COMMAND", "SHELL", "ZDOTDIR", "TERMINFO", "TERMINFO_DIRS"),
    *("PYTHONSTARTUP", "PERL5OPT", "RUBYOPT", "NODE_OPTIONS", "npm_config_script_shell", "LUA_INIT", "LUA_INIT_5_4"),
    *("PHPRC", "PHP_INI_SCAN_DIR", "R_PROFILE", "JAVA_TOOL_OPTIONS", "MAVEN_OPTS", "DOTNET_STARTUP_HOOKS", "ERL_FLAGS"),
    *("HOME", "CURL_HOME", "GNUPGHOME", "XDG_CONFIG_HOME", "XDG_DATA_DIRS", "WGETRC", "INPUTRC", "PSQLRC", "EXINIT"),
    *("TAR_OPTIONS", "GREP_OPTIONS", "XZ_OPT", "XZ_DEFAULTS", "ZIPOPT", "TF_CLI_ARGS", "TAPE"),
    *("MAKEFLAGS", "MAKEFILES", "CFLAGS", "CC", "GOFLAGS", "RUSTC_WRAPPER", "CARGO_HOME"),
    *("RSYNC_RSH", "CVS_RSH", "GIT_SSH", "GIT_SSH_COMMAND", "SVN_SSH", "SSH_ASKPASS", "SUDO_ASKPASS"),
    *("RESTIC_PASSWORD_COMMAND", "EDITOR", "VISUAL", "PAGER", "MANPAGER", "BROWSER", "LESS", "LESSOPEN", "LESSCLOSE"),
    *("OPENSSL_CONF", "OPENSSL_MODULES", "SSL_CERT_FILE", "KRB5_CONFIG", "KUBECONFIG", "AWS_CONFIG_FILE"),
    *("LIBMYSQL_PLUGINS", "LIBMYSQL_PLUGIN_DIR", "RIPGREP_CONFIG_PATH", "AWA_APP", "AWA_PG_BIN"),
)
ALLOWED_VARIABLES = (
    *("LANG", "LC_ALL", "TZ", "TERM", "DEBUG", "VERBOSE", "SRC", "TARGET", "DATA_SRC", "BACKUP_PATH", "OUTPUT_DIR"),
    *("PGHOST", "PGPASSWORD", "DATABASE_URL", "AWS_REGION", "S3_BUCKET", "API_TOKEN", "https_proxy", "HTTP_PROXY"),
)


async def execute(app: App, args: dict[str, Any], **options: Any) -> Job:
    return await run_one(app, "cmd_exec", args, **{"max_attempts": 1, **options})


def error(job: Job) -> str:
    return str(job.errors[-1]["error"])


class TestEcho:  # F21
    async def test_noop_echo_returns_its_arguments(self, app: App) -> None:
        job = await run_one(app, "noop_echo", {"sleep_ms": 1, "a": 1, "b": ["x"]})
        assert (job.state, job.result) == (State.COMPLETED, {"a": 1, "b": ["x"]})

    async def test_noop_echo_fails_on_request(self, app: App) -> None:
        job = await run_one(app, "noop_echo", {"fail": "on purpose"}, max_attempts=1)
        assert (job.state, error(job)) == (State.FAILED, "on purpose")
        job = await run_one(app, "noop_echo", {"fail": True})
        assert (job.state, error(job)) == (State.RETRYABLE, "noop_echo: fail was set")

    async def test_noop_echo_throttles_on_request(self) -> None:
        with pytest.raises(Throttled):
            await noop_echo(throttle=True)

    async def test_kind_of_the_app_replaces_noop_echo(self, database_url: str) -> None:
        app = App(database_url)

        @app.job(kind="noop_echo")
        async def own() -> str:
            return "own"

        add_builtin(app.registry, exec_root=None, max_result_bytes=1000)
        assert (await run_one(app, "noop_echo")).result == "own"


class TestRegistration:  # F21
    async def test_cmd_exec_is_off_without_a_root(self, database_url: str, session: Session) -> None:
        app = App(database_url)
        add_builtin(app.registry, exec_root=None, max_result_bytes=1000)
        assert app.registry.kinds == ("noop_echo",)
        (job_id,) = await insert(session, "ready", kind="cmd_exec", args='{"argv": ["./x"]}', run_at=ago(10))
        await drain(app)
        assert (await look(session, job_id)).state is State.AVAILABLE
        await Unserved(staleness=seconds(90), metrics=Metrics(), grace=seconds(5)).run(session)
        assert error(await look(session, job_id)) == "no handler registered for kind: cmd_exec"  # F9

    def test_second_cmd_exec_is_a_config_error(self, app: App, root: Root) -> None:
        other = App("postgresql://x")

        @other.job
        async def cmd_exec() -> None: ...

        with pytest.raises(ConfigError, match="'cmd_exec' is registered twice"):
            add_builtin(other.registry, exec_root=root.path, max_result_bytes=1000)


class TestRun:  # F21
    async def test_result_has_exit_code_and_output(self, app: App, root: Root) -> None:
        job = await execute(app, root.args(root.script("hello", "echo out; echo err >&2; pwd"), cwd=str(root.path)))
        assert job.state is State.COMPLETED, job.errors
        assert job.result == {"exit_code": 0, "output": f"out\nerr\n{root.path}\n"}

    async def test_bare_name_is_looked_up_in_bin_and_root(self, app: App, root: Root) -> None:
        root.script("one", "echo of the root")
        root.script("bin/two", "echo of bin")
        assert (await execute(app, root.args("one"))).result["output"] == "of the root\n"
        assert (await execute(app, root.args("two"))).result["output"] == "of bin\n"

    async def test_program_runs_in_cwd(self, app: App, root: Root) -> None:
        script = root.script("deep/er/where", "pwd; echo $0")
        job = await execute(app, root.args("./er/where", cwd="deep"))
        assert job.result["output"] == f"{root.path}/deep\n{root.path}/deep/er/where\n"
        assert (await execute(app, root.args(script))).result["output"].startswith(f"{root.path}\n")

    async def test_arguments_are_not_passed_to_a_shell(self, app: App, root: Root) -> None:
        script = root.script("words", 'printf "%s\\n" "$@"')
        words = ["; touch pwned", "$(touch pwned)", "`touch pwned`", "a b", "*", "ä€", ""]
        job = await execute(app, root.args(script, *words))
        assert job.result["output"] == "\n".join(words) + "\n"
        assert not root.note("pwned")()
        job = await execute(app, root.args(f"{script}; touch pwned"))
        assert "there is no such program" in error(job)
        assert not root.note("pwned")()

    async def test_program_receives_standard_input(self, app: App, root: Root) -> None:
        script = root.script("count", "wc -c")
        assert (await execute(app, root.args(script))).result["output"].strip() == "0"
        job = await execute(app, root.args(script, stdin="ä" * 200_000))
        assert job.result["output"].strip() == "400000"

    async def test_program_may_ignore_its_standard_input(self, app: App, root: Root) -> None:
        job = await execute(app, root.args(root.script("deaf", "echo done"), stdin="x" * 500_000))
        assert job.result["output"] == "done\n"

    async def test_program_does_not_get_the_worker_environment(
        self, app: App, root: Root, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AWA_DATABASE_URL", "postgresql://awa:hush@db/awa")
        script = root.script("look", "env; tr '\\0' '\\n' < /proc/$PPID/environ")
        job = await execute(app, root.args(script, env={"COLOUR": "blue"}))
        seen = dict(line.split("=", 1) for line in job.result["output"].splitlines())
        assert seen.keys() - {"PWD", "_", "SHLVL", "OLDPWD"} == {"PATH", "HOME", "LANG", "COLOUR", MARK}
        assert (seen["COLOUR"], seen["HOME"]) == ("blue", str(root.path))
        assert "hush" not in json.dumps(job.result)

    async def test_cmd_exec_works_on_uvloop(self, app: App, root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWA_DATABASE_URL", "postgresql://awa:hush@db/awa")
        look = root.script("look", "cat /proc/$PPID/environ; cat; echo .")
        sleep = root.script("sleep", "exec sleep 3600")

        async def both() -> tuple[Job, Job]:
            return (
                await execute(app, root.args(look, stdin="in")),
                await execute(app, root.args(sleep, timeout_s=0.5)),
            )

        def on_uvloop() -> tuple[Job, Job]:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                return runner.run(both())

        done, timed_out = await asyncio.to_thread(on_uvloop)
        assert done.result == {"exit_code": 0, "output": "in.\n"}
        assert error(timed_out) == "timed out after 0.5 s: no output"
        assert root.processes() == []


class TestOutput:  # F21
    async def test_error_shows_the_last_256_bytes_of_output(self, app: App, root: Root) -> None:
        script = root.script("break", 'i=0; while [ $i -lt 500 ]; do echo "line $i"; i=$((i+1)); done; exit 3')
        job = await execute(app, root.args(script))
        assert job.state is State.FAILED
        assert error(job).startswith("exit 3: ")
        assert error(job).endswith("line 499")
        assert len(error(job)) == len("exit 3: ") + 256

    async def test_failed_program_is_retried(self, app: App, root: Root) -> None:
        job = await execute(app, root.args(root.script("break", "exit 7")), max_attempts=2)
        assert (job.state, error(job)) == (State.RETRYABLE, "exit 7: no output")

    async def test_error_names_the_signal(self, app: App, root: Root) -> None:
        job = await execute(app, root.args(root.script("die", "echo last words; kill -9 $$")))
        assert error(job) == "killed by SIGKILL: last words"

    async def test_only_the_end_of_large_output_is_kept(self, app: App, root: Root) -> None:
        flood = root.script("flood", "head -c 50000000 /dev/zero | tr '\\0' 'x'; echo; echo end")
        before = psutil.Process().memory_info().rss
        job = await execute(app, root.args(flood))
        assert job.state is State.COMPLETED, job.errors
        assert len(job.result["output"]) == 64 * 1024
        assert job.result["output"].endswith("xxx\nend\n")
        assert psutil.Process().memory_info().rss - before < 30_000_000

    async def test_invalid_utf8_is_replaced(self, app: App, root: Root) -> None:
        job = await execute(app, root.args(root.script("binary", "printf 'a\\000b\\377c'")))
        assert job.result["output"] == "a\ufffdb\ufffdc"
        job = await execute(app, root.args(root.script("all", "head -c 300000 /dev/urandom")))
        assert job.state is State.COMPLETED, job.errors

    async def test_output_is_cut_to_the_result_limit(self, database_url: str, root: Root) -> None:
        app = App(database_url)
        add_builtin(app.registry, exec_root=root.path, max_result_bytes=4000)
        job = await execute(app, root.args(root.script("binary", "head -c 5000 /dev/zero")))
        assert job.state is State.COMPLETED, job.errors
        assert 0 < len(json.dumps(job.result)) < 4000


class TestRoot:  # F21
    @pytest.fixture
    def outside(self, tmp_path: Path, root: Root) -> Path:
        """A program outside the root, in a directory whose name starts with the root's, and links to it."""
        outside = tmp_path / "root-sibling"
        outside.mkdir()
        program = outside / "program"
        program.write_text(f"#!/bin/sh\ntouch {outside}/ran\n")
        program.chmod(0o755)
        (root.path / "link").symlink_to(program)
        (root.path / "directory").symlink_to(outside)
        (root.path / "bin").mkdir()
        (root.path / "bin" / "linked").symlink_to(program)
        return outside

    @pytest.mark.parametrize(
        "argv0",
        ["../root-sibling/program", "/bin/true", "./link", "link", "linked", "directory/program", "{outside}/program"],
    )
    async def test_program_outside_the_root_is_rejected(self, app: App, root: Root, outside: Path, argv0: str) -> None:
        name = argv0.format(outside=outside)
        job = await execute(app, root.args(name), max_attempts=5)
        assert (job.state, error(job)) == (State.FAILED, f"program {name!r} is outside {root.path}")
        assert not (outside / "ran").exists()

    @pytest.mark.parametrize("cwd", ["..", "../root-sibling", "/", "directory", "{outside}", "bin/../.."])
    async def test_cwd_outside_the_root_is_rejected(self, app: App, root: Root, outside: Path, cwd: str) -> None:
        where = cwd.format(outside=outside)
        script = root.script("here", "pwd > ran")
        job = await execute(app, root.args(f"{root.path}/{script}", cwd=where), max_attempts=5)
        assert (job.state, error(job)) == (State.FAILED, f"cwd {where!r} is outside {root.path}")
        assert not (outside / "ran").exists()

    async def test_program_is_not_looked_up_in_path(self, app: App, root: Root) -> None:
        job = await execute(app, root.args("sh", "-c", "true"))
        assert error(job) == f"'sh' could not be started: there is no such program in {root.path} or its bin directory"

    async def test_links_inside_the_root_are_followed(self, app: App, root: Root, tmp_path: Path) -> None:
        root.script("real/program", "echo $0; pwd")
        (root.path / "short").symlink_to("real/program")
        (root.path / "place").symlink_to(root.path / "real")
        job = await execute(app, root.args(f"{root.path}/short", cwd="place"))
        assert job.result["output"] == f"{root.path}/real/program\n{root.path}/real\n"
        # The root itself may be a link.
        (tmp_path / "alias").symlink_to(root.path)
        other = App(app.database.url)
        add_builtin(other.registry, exec_root=tmp_path / "alias", max_result_bytes=100_000)
        assert (await execute(other, root.args("./short"))).state is State.COMPLETED

    async def test_error_says_why_a_path_is_not_a_program(self, app: App, root: Root) -> None:
        (root.path / "data").write_text("not a program")
        assert "run chmod +x" in error(await execute(app, root.args("./data")))
        assert "is not an executable file" in error(await execute(app, root.args("./")))
        assert "there is no such program" in error(await execute(app, root.args("./nothing")))
        assert "cwd 'nowhere': No such file" in error(await execute(app, root.args("./data", cwd="nowhere")))

    @pytest.mark.parametrize(
        ("args", "message"),
        [
            ({"argv": []}, "argv contains no program"),
            ({"argv": [""]}, "argv contains no program"),
            ({"argv": ["x"], "timeout_s": 0}, "timeout_s must be a number of seconds"),
            ({"argv": ["x"], "timeout_s": -1}, "timeout_s must be a number of seconds"),
            ({"argv": ["x"], "env": {"LD_PRELOAD": "/tmp/x.so"}}, "env: LD_PRELOAD may not be set"),
            ({"argv": ["x"], "env": {"PATH": "/tmp"}}, "env: PATH may not be set"),
            ({"argv": ["x"], "env": {"BASH_ENV": "/tmp/x"}}, "env: BASH_ENV may not be set"),
            ({"argv": ["x"], "env": {"BASH_FUNC_ls%%": "() { id; }"}}, "is not a valid variable name"),
            ({"argv": ["x"], "env": {"A=B": "c"}}, "is not a valid variable name"),
            ({"argv": ["x"], "env": {"": "c"}}, "is not a valid variable name"),
        ],
    )
    async def test_invalid_arguments_fail_without_retry(self, app: App, args: dict[str, Any], message: str) -> None:
        job = await execute(app, args, max_attempts=5)
        assert job.state is State.FAILED
        assert message in error(job)

    @pytest.mark.parametrize("name", FORBIDDEN_VARIABLES)
    async def test_forbidden_variable_is_rejected(self, root: Root, name: str) -> None:
        commands = Commands(root.path, max_result_bytes=1000)
        with pytest.raises(Fail, match=f"env: {name} may not be set"):
            await commands.cmd_exec(**root.args(root.script("run", "touch ran"), env={name: "x"}))
        assert not root.note("ran")()

    async def test_allowed_variables_reach_the_program(self, app: App, root: Root) -> None:
        job = await execute(app, root.args(root.script("look", "env"), env=dict.fromkeys(ALLOWED_VARIABLES, "value")))
        assert job.state is State.COMPLETED, job.errors
        seen = job.result["output"].splitlines()
        assert [name for name in ALLOWED_VARIABLES if f"{name}=value" not in seen] == []

    async def test_tar_options_cannot_be_injected(self, app: App, root: Root) -> None:
        tar = root.script("backup", "tar -cf /dev/null backup")
        options = "--checkpoint=1 --checkpoint-action=exec='touch pwned'"
        job = await execute(app, root.args(tar, env={"TAR_OPTIONS": options}), max_attempts=5)
        assert job.state is State.FAILED
        assert (await execute(app, root.args(tar))).state is State.COMPLETED
        assert not root.note("pwned")()


@pytest.fixture(params=FAMILIES.values(), ids=[*FAMILIES])
def family(request: pytest.FixtureRequest, root: Root) -> str:
    """A program whose processes survive unless all of them are killed."""
    return root.script("family", request.param)


class TestNoProcessIsLeft:  # F21
    async def test_timeout_leaves_no_process(self, app: App, root: Root, family: str) -> None:
        job = await execute(app, root.args(family, timeout_s=2))
        assert root.note("runs")()
        assert (job.state, error(job)[:19]) == (State.FAILED, "timed out after 2 s")
        assert root.processes() == []

    async def test_cancel_leaves_no_process(self, app: App, root: Root, family: str) -> None:
        async with app, working(app):
            job = await app.enqueue("cmd_exec", root.args(family))
            await eventually(root.note("runs"))
            assert await app.cancel(job.id)
            await eventually(lambda: is_state(app, job.id, State.CANCELLED))
            assert root.processes() == []

    @pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
    @pytest.mark.parametrize("how", ["timeout", "cancel"])
    async def test_forked_process_with_the_pipe_leaves_no_process(
        self, app: App, root: Root, family: str, how: str
    ) -> None:
        async with app, working(app):
            limit_s = 3 if how == "timeout" else 600
            job = await app.enqueue("cmd_exec", root.args(family, timeout_s=limit_s), max_attempts=1)
            await eventually(root.note("runs"))
            with forked():
                if how == "cancel":
                    assert await app.cancel(job.id)
                ended = State.FAILED if how == "timeout" else State.CANCELLED
                await eventually(lambda: is_state(app, job.id, ended))
                assert root.processes() == []

    async def test_normal_end_leaves_no_process(self, app: App, root: Root) -> None:
        script = root.script("leave", "sleep 3600 & setsid sleep 3600 & (setsid sleep 3600 &) ; echo bye")
        job = await execute(app, root.args(script, timeout_s=60))
        assert job.result == {"exit_code": 0, "output": "bye\n"}
        assert root.processes() == []

    async def test_job_timeout_leaves_no_process(self, app: App, root: Root) -> None:
        job = await execute(app, root.args(root.script("family", FAMILIES["grandchild"])), timeout="2s")
        assert error(job) == "HandlerTimeout: timed out after 2 s"
        assert root.processes() == []

    async def test_lost_lease_leaves_no_process(self, app: App, root: Root, session: Session) -> None:
        async with app, working(app):
            await app.enqueue("cmd_exec", root.args(root.script("family", FAMILIES["grandchild"])))
            await eventually(root.note("runs"))
            await session.connection.execute("DELETE FROM awa.running")
            await eventually(lambda: root.processes() == [])

    async def test_second_stop_leaves_no_process(self, app: App, root: Root) -> None:  # F19
        async with app:
            async with working(app) as worker:
                job = await app.enqueue("cmd_exec", root.args(root.script("family", FAMILIES["deaf"])))
                await eventually(root.note("runs"))
                worker.stop()
                worker.stop()
            released = await app.get(job.id)
            assert (released.state, released.attempt) == (State.AVAILABLE, 0)
            assert root.processes() == []

    async def test_stopping_worker_waits_for_the_command(self, app: App, root: Root) -> None:  # F19
        async with app:
            async with working(app):
                script = root.script("slow", "touch runs; sleep 1; echo done")
                job = await app.enqueue("cmd_exec", root.args(script))
                await eventually(root.note("runs"))
            assert (await app.get(job.id)).result == {"exit_code": 0, "output": "done\n"}

    async def test_command_receives_sigterm_first(self, app: App, root: Root) -> None:
        script = root.script("polite", "trap 'touch terminated; exit 0' TERM; touch runs; while :; do sleep 0.05; done")
        job = await execute(app, root.args(script, timeout_s=1))
        assert error(job).startswith("timed out")
        assert root.note("terminated")()

    async def test_killed_command_runner_ends_its_command(self, app: App, root: Root) -> None:
        async with app, working(app):
            job = await app.enqueue("cmd_exec", root.args(root.script("family", FAMILIES["child"])), max_attempts=1)
            await eventually(root.note("runs"))
            (command,) = root.processes()
            parent = command.parent()
            assert parent is not None
            assert command_runner.__file__ in parent.cmdline()
            os.kill(parent.pid, 9)
            await eventually(lambda: is_state(app, job.id, State.FAILED))
            assert error(await app.get(job.id)) == "the command runner was killed: no output"
            await eventually(lambda: root.processes() == [])

    def test_early_stop_starts_no_command(self, root: Root) -> None:
        with running_command_runner(root, worker_pid=os.getpid(), then=command_runner.STOP) as process:
            assert process.wait(30) == 0
        assert not root.note("ran")()

    @pytest.mark.parametrize("sent", ["all", "half", "nothing"])
    def test_dead_worker_starts_no_command(self, root: Root, sent: str) -> None:
        with running_command_runner(
            root, worker_pid=os.getppid(), sent=sent
        ) as process:  # the pipe stays open, as in a forked process
            assert process.wait(30) == 0
        assert not root.note("ran")()

    async def test_many_commands_run_at_once(self, app: App, root: Root) -> None:
        script = root.script("quick", "echo $1")
        async with app:
            jobs = await app.enqueue_many(app.new("cmd_exec", root.args(script, str(n))) for n in range(30))
            await drain(app)
            assert [(await app.get(job.id)).result["output"] for job in jobs] == [f"{n}\n" for n in range(30)]
        assert root.processes() == []


@contextmanager
def forked() -> Iterator[None]:
    """A process that inherited all open files, as a handler creates with multiprocessing."""
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(3600,))
    process.start()
    try:
        yield
        assert process.is_alive()
    finally:
        process.kill()
        process.join()


@contextmanager
def running_command_runner(
    root: Root, *, worker_pid: int, sent: str = "all", then: bytes = b""
) -> "Iterator[subprocess.Popen[bytes]]":
    """Start a command runner, send it all or a part of a request, and keep its standard input open."""
    argv = [root.script("run", "touch ran; exec sleep 3600")]
    env = {MARK: root.mark}
    request = (
        json.dumps({"root": str(root.path), "argv": argv, "env": env, "cwd": None, "stdin": None}).encode() + b"\n"
    )
    with subprocess.Popen(
        [sys.executable, "-I", "-S", command_runner.__file__, str(worker_pid)],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdin is not None
        process.stdin.write({"all": request, "half": request[:20], "nothing": b""}[sent] + then)
        process.stdin.flush()
        try:
            yield process
        finally:
            process.kill()


async def is_state(app: App, job_id: int, state: State) -> bool:
    return (await app.get(job_id)).state is state
