"""The embedded PostgreSQL runs exactly as long as a process uses it, and loses no data."""

import asyncio
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import psutil
import pytest

from awa_py.embedded import (
    EmbeddedPostgres,
    ShutdownMode,
    account,
    binaries,
    cluster,
    find_binaries,
    guardian,
)
from awa_py.errors import ConfigError, EmbeddedError

pytestmark = pytest.mark.integration

REPOSITORY = Path(__file__).resolve().parents[2]
QUICK = {"fsync": "off"}
NOBODY = 65534
IMPORT_PATH = os.pathsep.join([str(REPOSITORY), str(Path(asyncpg.__file__).parents[1])])

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

USER_PROGRAM = """
import signal
import sys
from pathlib import Path
from awa_py.embedded import EmbeddedPostgres

directory = Path(sys.argv[1]) if len(sys.argv) > 1 else None
with EmbeddedPostgres(directory, settings={"fsync": "off"}) as server:
    signal.signal(signal.SIGINT, lambda *_: print("interrupted", flush=True))
    print(server.url, server.directory, server.guardian_pid, flush=True)
    sys.stdin.readline()
"""


class User:
    """Another process that uses an embedded server until leave() is called."""

    def __init__(self, directory: Path | None = None, **options: Any) -> None:
        argv = [options.pop("python", sys.executable), "-c", USER_PROGRAM]
        self.process: subprocess.Popen[str] = subprocess.Popen(
            argv + ([str(directory)] if directory else []),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            **options,
        )

    def wait_for_server(self) -> None:
        words = self.read_line().split()
        assert len(words) == 3, words + [self.read_line() for _ in range(30)]
        self.url, self.directory, self.guardian_pid = words[0], Path(words[1]), int(words[2])

    def read_line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def leave(self) -> None:
        self.process.communicate("leave\n", timeout=60)
        assert self.process.returncode == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=60)


@pytest.fixture
def start_user() -> Iterator[Callable[..., User]]:
    users: list[User] = []

    def start(directory: Path | None = None, **options: Any) -> User:
        users.append(User(directory, **options))
        users[-1].wait_for_server()
        return users[-1]

    yield start
    for user in users:
        user.kill()


@pytest.fixture
def public_directory() -> Iterator[Path]:
    """A directory with a short path that every user can enter, unlike pytest's own."""
    directory = Path(tempfile.mkdtemp(prefix="awa-test-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


def query(url: str, statement: str = "SELECT 1") -> Any:
    async def ask() -> Any:
        connection = await asyncpg.connect(url, timeout=10)
        try:
            return await connection.fetchval(statement)
        finally:
            await connection.close()

    return asyncio.run(ask())


def is_up(url: str) -> bool:
    try:
        return bool(query(url) == 1)
    except (OSError, asyncpg.PostgresError):
        return False


def postgres_processes(directory: Path) -> list[int]:
    """Find the processes by working directory, independently of the module under test."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.name().startswith("postgres") and process.cwd().startswith(f"{directory}/data"):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def eventually(holds: Callable[[], bool], timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def kill_guardian(user: User) -> None:
    """Kill the guardian and wait: on a busy machine even SIGKILL takes a moment."""
    os.kill(user.guardian_pid, signal.SIGKILL)
    eventually(lambda: not is_running(user.guardian_pid))


def test_server_starts_answers_and_leaves_nothing_behind() -> None:
    with EmbeddedPostgres() as server:
        assert query(server.url, "SELECT current_database()") == "awa"
        assert server.socket_url is not None
        assert query(server.socket_url, "SELECT current_user") == "awa"
        assert query(server.url, "SHOW fsync") == "on"
        assert postgres_processes(server.directory)
        guardian_pid = server.guardian_pid
    assert not postgres_processes(server.directory)
    assert not is_running(guardian_pid)
    assert not server.directory.exists()


@pytest.mark.chaos
def test_server_can_be_started_and_stopped_repeatedly(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path / "data", settings=QUICK)
    server.stop()
    for _ in range(2):
        server.start()
        server.start()
        assert is_up(server.url)
        server.stop()
        server.stop()
        with pytest.raises(EmbeddedError, match="not started"):
            _ = server.url


def test_server_encoding_is_utf8() -> None:
    with EmbeddedPostgres(settings=QUICK) as server:
        assert query(server.url, "SHOW server_encoding") == "UTF8"
        assert query(server.url, "SELECT length('žluť')") == 4


def test_data_and_url_outlive_the_server(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path / "data", settings=QUICK) as server:
        url = server.url
        query(url, "CREATE TABLE kept AS SELECT 42 AS answer")
    assert not is_up(url)
    with EmbeddedPostgres(tmp_path / "data", settings=QUICK) as server:
        assert server.url == url
        assert query(url, "SELECT answer FROM kept") == 42


def test_connection_needs_the_password() -> None:
    with EmbeddedPostgres(settings=QUICK) as server:
        assert server.socket_url
        for url in (server.url, server.socket_url):
            head, _, tail = url.partition("@")
            with pytest.raises(asyncpg.InvalidPasswordError):
                query(f"{head}x@{tail}")
        assert (server.directory / "access.json").stat().st_mode & 0o777 == 0o600
        assert (server.directory / "data").stat().st_mode & 0o777 == 0o700


def test_last_process_stops_the_shared_server(tmp_path: Path, start_user: Callable[..., User]) -> None:
    first, second = start_user(tmp_path / "data"), start_user(tmp_path / "data")
    assert first.url == second.url
    first.leave()
    assert query(second.url) == 1
    third = start_user(tmp_path / "data")
    second.leave()
    assert query(third.url) == 1
    third.leave()
    assert not postgres_processes(tmp_path / "data")


@pytest.mark.chaos
def test_processes_that_start_together_share_one_server(tmp_path: Path) -> None:
    users = [User(tmp_path / "data") for _ in range(4)]
    try:
        for user in users:
            user.wait_for_server()
        assert len({(user.url, user.guardian_pid) for user in users}) == 1
    finally:
        for user in users:
            user.kill()
    eventually(lambda: not postgres_processes(tmp_path / "data"))


@pytest.mark.chaos
def test_server_survives_the_death_of_its_starter(tmp_path: Path, start_user: Callable[..., User]) -> None:
    starter, other = start_user(tmp_path / "data"), start_user(tmp_path / "data")
    starter.kill()
    time.sleep(0.5)  # Longer than the guardian's poll interval: there is no event to wait for.
    assert query(other.url) == 1
    other.leave()
    assert not postgres_processes(tmp_path / "data")


@pytest.mark.chaos
def test_killed_last_user_leaves_no_process_and_no_directory(
    start_user: Callable[..., User],
) -> None:
    user = start_user()
    assert postgres_processes(user.directory)
    user.kill()
    eventually(lambda: not is_running(user.guardian_pid))
    assert not postgres_processes(user.directory)
    assert not user.directory.exists()


@pytest.mark.chaos
def test_server_ends_with_a_killed_guardian_and_recovers(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path / "data", settings=QUICK) as server:
        url = server.url
        query(url, "CREATE TABLE kept AS SELECT 42 AS answer")
        os.kill(server.guardian_pid, signal.SIGKILL)
        if sys.platform.startswith("linux"):
            eventually(lambda: not postgres_processes(server.directory))
        assert server.guardian_pid == 0
        server.start()
        assert server.url == url
        assert query(url, "SELECT answer FROM kept") == 42


@pytest.mark.chaos
def test_server_starts_after_all_processes_were_killed(tmp_path: Path, start_user: Callable[..., User]) -> None:
    for _ in range(3):
        user = start_user(tmp_path / "data")
        query(user.url, "CREATE TABLE IF NOT EXISTS kept (answer int)")
        query(user.url, "INSERT INTO kept VALUES (42)")
        kill_guardian(user)
        user.kill()
    with EmbeddedPostgres(tmp_path / "data", settings=QUICK) as server:
        assert query(server.url, "SELECT count(*) FROM kept") == 3


@pytest.mark.chaos
def test_killed_server_is_restarted(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path / "data", settings=QUICK) as server:
        pid = server.server_pid
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: server.server_pid not in (0, pid) and is_up(server.url))


@pytest.mark.chaos
def test_stop_during_a_restart_does_not_hang(tmp_path: Path) -> None:
    for moment_s in (0.0, 0.01, 0.02, 0.03, 0.05, 0.1):
        server = EmbeddedPostgres(tmp_path / "data", settings=QUICK)
        server.start()
        os.kill(server.server_pid, signal.SIGKILL)
        time.sleep(moment_s)  # Each delay hits another phase of the restart.
        began = time.monotonic()
        server.stop()
        assert time.monotonic() - began < guardian.SHUTDOWN[0][1]
        assert not postgres_processes(server.directory)


@pytest.mark.chaos
def test_server_log_is_rotated(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path / "data", settings=QUICK) as server:
        log = server.directory / "server.log"
        with log.open("ab") as file:
            file.write(b"noise\n" * (guardian.MAX_LOG_BYTES // 6 + 1))
        eventually(lambda: log.stat().st_size < 100_000)
        server.restart()
        assert "ready to accept connections" in log.read_text()


@pytest.mark.chaos
@pytest.mark.parametrize("mode", ["fast", "immediate", "kill"])
def test_restart_keeps_url_and_data(tmp_path: Path, mode: ShutdownMode) -> None:
    with EmbeddedPostgres(tmp_path / "data", settings=QUICK) as server:
        url, pid = server.url, server.server_pid
        query(url, "CREATE TABLE kept AS SELECT 42 AS answer")
        server.restart(mode=mode)
        assert server.url == url
        assert server.server_pid != pid
        assert query(url, "SELECT answer FROM kept") == 42


@pytest.mark.chaos
def test_stopped_server_stays_down_until_started(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path / "data", settings=QUICK) as server:
        server.stop_server("immediate")
        assert server.server_pid == 0
        time.sleep(0.5)  # Longer than the guardian's poll interval.
        assert not is_up(server.url)
        server.start_server()
        assert is_up(server.url)
        server.stop_server()
    assert not postgres_processes(server.directory)


@pytest.mark.chaos
def test_killed_process_cannot_keep_the_server_down(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from awa_py.embedded import EmbeddedPostgres\n"
        "server = EmbeddedPostgres(Path(sys.argv[1])); server.start(); server.stop_server(); os._exit(9)"
    )
    with EmbeddedPostgres(tmp_path / "data", settings=QUICK) as server:
        pid = server.server_pid
        answer = subprocess.run([sys.executable, "-c", program, tmp_path / "data"], check=False)
        assert answer.returncode == 9
        eventually(lambda: is_up(server.url))
        assert server.server_pid != pid


@pytest.mark.chaos
def test_ctrl_c_does_not_reach_the_server(tmp_path: Path, start_user: Callable[..., User]) -> None:
    user = start_user(tmp_path / "data", start_new_session=True)
    os.killpg(user.process.pid, signal.SIGINT)
    assert user.read_line() == "interrupted"
    assert query(user.url) == 1
    assert is_running(user.guardian_pid)
    user.leave()
    assert not postgres_processes(tmp_path / "data")


@pytest.mark.chaos
def test_guardian_ignores_signals_of_a_service_manager(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path / "data", settings=QUICK) as server:
        for kind in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(server.guardian_pid, kind)
        server.restart()
        assert is_up(server.url)


@pytest.mark.chaos
def test_forked_child_does_not_stop_the_server(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from awa_py.embedded import EmbeddedPostgres\n"
        "with EmbeddedPostgres(Path(sys.argv[1]), settings={'fsync': 'off'}) as server:\n"
        "    if not (child := os.fork()):\n"
        "        server.stop(); os._exit(0)\n"
        "    os.waitpid(child, 0); print(server.server_pid)\n"
    )
    argv = [sys.executable, "-c", program, str(tmp_path / "data")]
    assert int(subprocess.run(argv, capture_output=True, text=True, check=True).stdout) > 0


@pytest.mark.chaos
def test_stale_pid_file_of_an_unrelated_process_is_removed(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    with EmbeddedPostgres(directory, settings=QUICK):
        owner = (directory / "data").stat()
    pid_file = directory / "data" / "postmaster.pid"
    switch: dict[str, Any] = {"user": owner.st_uid, "group": owner.st_gid} if os.geteuid() == 0 else {}
    unrelated = subprocess.Popen(["sleep", "600"], cwd="/", **switch)
    try:
        pid_file.write_text(f"{unrelated.pid}\n{directory}/data\n1\n1\n\n127.0.0.1\n0 0\nready   \n")
        port = cluster.Access.read(cluster.Home(directory)).port
        socket_lock = directory / "data" / f".s.PGSQL.{port}.lock"
        socket_lock.write_text(pid_file.read_text())
        for file in (pid_file, socket_lock):
            os.chown(file, owner.st_uid, owner.st_gid)
        with EmbeddedPostgres(directory, settings=QUICK) as server:
            assert is_up(server.url)
            assert server.server_pid != unrelated.pid
        assert unrelated.poll() is None
    finally:
        unrelated.kill()
        unrelated.wait()


@pytest.mark.chaos
def test_pid_file_of_a_dead_process_is_ignored(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    with EmbeddedPostgres(directory, settings=QUICK):
        owner = (directory / "data").stat()
    dead = subprocess.Popen(["true"])
    dead.wait()
    pid_file = directory / "data" / "postmaster.pid"
    pid_file.write_text(f"{dead.pid}\n{directory}/data\n1\n1\n\n127.0.0.1\n0 0\nready   \n")
    os.chown(pid_file, owner.st_uid, owner.st_gid)
    with EmbeddedPostgres(directory, settings=QUICK) as server:
        assert is_up(server.url)


def test_server_chooses_another_port_if_its_own_is_in_use(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path / "data", settings=QUICK) as server:
        url = server.url
    port = int(url.rpartition(":")[2].partition("/")[0])
    with socket.create_server(("127.0.0.1", port)), EmbeddedPostgres(tmp_path / "data") as server:
        assert server.url != url
        assert is_up(server.url)


def test_long_directory_has_no_socket_url(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path / ("long" * 40) / "data", settings=QUICK) as server:
        assert server.socket_url is None
        assert is_up(server.url)


def test_directory_may_contain_special_characters(public_directory: Path) -> None:
    with EmbeddedPostgres(public_directory / 'b\'s "ž" %', settings=QUICK) as server:
        assert is_up(server.url)
        assert server.socket_url is not None
        assert is_up(server.socket_url)
    with EmbeddedPostgres(public_directory / "a, b", settings=QUICK) as server:
        assert is_up(server.url)
        assert server.socket_url is None


def test_settings_reach_the_server() -> None:
    with EmbeddedPostgres(settings={"fsync": "off", "work_mem": "7MB"}) as server:
        assert query(server.url, "SHOW work_mem") == "7MB"
        assert query(server.url, "SHOW max_connections") == "200"


def test_reserved_setting_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="port"):
        EmbeddedPostgres(settings={"port": "5432"})


def test_error_of_an_invalid_setting_quotes_the_log(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path / "data", settings={"fsync": "off", "shared_buffers": "a lot"})
    with pytest.raises(EmbeddedError, match=r"invalid value for parameter .*shared_buffers"):
        server.start()
    with EmbeddedPostgres(tmp_path / "data", settings=QUICK) as server:
        assert is_up(server.url)


@pytest.mark.chaos
def test_slow_start_times_out(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path / "data", settings=QUICK) as server:
        server.stop_server()
        late = EmbeddedPostgres(tmp_path / "data", startup_timeout=timedelta(seconds=0.3))
        with pytest.raises(EmbeddedError, match="did not start within"):
            late.start()
        server.start_server()
        assert is_up(server.url)


def test_directory_with_other_files_is_rejected_untouched(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(EmbeddedError, match="is not empty"):
        EmbeddedPostgres(tmp_path).start()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_directory_that_others_may_write_is_rejected(tmp_path: Path, mode: int) -> None:
    directory = tmp_path / "data"
    directory.mkdir()
    directory.chmod(mode)
    with pytest.raises(EmbeddedError, match="other users may write"):
        EmbeddedPostgres(directory).start()
    assert not list(directory.iterdir())


@needs_root
def test_directory_of_another_user_is_rejected(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    directory.mkdir(mode=0o700)
    os.chown(directory, NOBODY, NOBODY)
    with pytest.raises(EmbeddedError, match=f"belongs to the user with uid {NOBODY}"):
        EmbeddedPostgres(directory).start()
    assert not list(directory.iterdir())


def test_existing_directory_becomes_private(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    directory.mkdir(mode=0o755)
    with EmbeddedPostgres(directory, settings=QUICK):
        # Root runs the server as another user, who has to pass through.
        assert directory.stat().st_mode & 0o777 == (0o711 if os.geteuid() == 0 else 0o700)
        for file in directory.iterdir():
            assert file.stat().st_mode & 0o077 == 0, file


@pytest.mark.parametrize("name", ["users.lock", "guardian.lock", "hold.lock", "access.json", "server.log"])
def test_link_in_the_directory_is_not_followed(tmp_path: Path, name: str) -> None:
    precious = tmp_path / "precious"
    precious.write_text("keep")
    directory = tmp_path / "data"
    directory.mkdir(mode=0o700)
    (directory / "users.lock").touch()
    (directory / name).unlink(missing_ok=True)
    (directory / name).symlink_to(precious)
    with pytest.raises(EmbeddedError):
        EmbeddedPostgres(directory, settings=QUICK, startup_timeout=timedelta(seconds=5)).start()
    assert precious.read_text() == "keep"


def test_file_instead_of_a_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    with pytest.raises(EmbeddedError, match="cannot be used"):
        EmbeddedPostgres(tmp_path / "file").start()


def test_data_of_an_unavailable_version_is_an_error(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path / "data", settings=QUICK):
        pass
    (tmp_path / "data" / "data" / "PG_VERSION").write_text("12\n")
    with pytest.raises(EmbeddedError, match="created by PostgreSQL 12"):
        EmbeddedPostgres(tmp_path / "data").start()


@pytest.mark.chaos
def test_data_keeps_its_version_if_the_programs_are_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = [path for path in binaries._candidates() if binaries._is_complete(path)]
    older = [path for path in installed if binaries.major_version(path) != binaries.major_version(installed[0])]
    if not older:
        pytest.skip("only one version of PostgreSQL is installed")
    monkeypatch.setenv("AWA_PG_BIN", str(older[0]))
    with EmbeddedPostgres(tmp_path / "data", settings=QUICK) as server:
        version = query(server.url, "SHOW server_version_num")
    monkeypatch.delenv("AWA_PG_BIN")
    with EmbeddedPostgres(tmp_path / "data", settings=QUICK) as server:
        assert query(server.url, "SHOW server_version_num") == version


def test_binaries_come_from_the_variable_or_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWA_PG_BIN", raising=False)
    if importlib.util.find_spec(binaries.WHEEL):
        assert binaries.WHEEL in str(find_binaries())
        assert binaries.WHEEL not in sys.modules
    monkeypatch.setenv("AWA_PG_BIN", str(find_binaries()))
    assert str(find_binaries()) == os.environ["AWA_PG_BIN"]
    monkeypatch.setenv("AWA_PG_BIN", str(tmp_path))
    with pytest.raises(EmbeddedError, match="AWA_PG_BIN="):
        find_binaries()


def test_error_without_binaries_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWA_PG_BIN", raising=False)
    monkeypatch.setattr(binaries, "_wheel_directories", list)
    monkeypatch.setattr(binaries, "_installed_directories", list)
    with pytest.raises(EmbeddedError, match=r"pip install 'awa-py\[embedded\]'.*AWA_PG_BIN"):
        find_binaries()
    with pytest.raises(EmbeddedError, match="pip install"):
        EmbeddedPostgres(tmp_path / "data").start()


@pytest.mark.chaos
def test_failed_start_leaves_no_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(EmbeddedError):
        EmbeddedPostgres(settings={"fsync": "perhaps"}).start()
    assert not list(tmp_path.iterdir())


@pytest.mark.chaos
def test_interrupted_creation_is_repeated(tmp_path: Path) -> None:
    home = cluster.open_home(tmp_path / "data")
    home.users_lock.touch()
    (home.path / "data.new-interrupted").mkdir()
    (home.path / "data.new-interrupted" / "PG_VERSION").write_text("18\n")
    with EmbeddedPostgres(home.path, settings=QUICK) as server:
        assert is_up(server.url)
    assert not list(home.path.glob("data.new-*"))


@needs_root
def test_server_of_root_runs_as_an_unprivileged_user() -> None:
    with EmbeddedPostgres(settings=QUICK) as server:
        assert psutil.Process(server.server_pid).uids().real != 0
        assert psutil.Process(server.server_pid).gids().real != 0
        assert (server.directory / "access.json").stat().st_uid == 0


@needs_root
def test_root_can_use_a_directory_that_only_root_can_enter(public_directory: Path) -> None:
    closed = public_directory / "closed"
    closed.mkdir(mode=0o700)
    with EmbeddedPostgres(closed / "data", settings=QUICK) as server:
        assert is_up(server.url)
        assert server.socket_url
        assert is_up(server.socket_url)
        server.restart(mode="kill")
        assert is_up(server.url)
    assert closed.stat().st_mode & 0o777 == 0o700


@pytest.mark.chaos
@needs_root
def test_unreadable_binaries_are_copied_once(
    tmp_path: Path, public_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if binaries.WHEEL not in str(find_binaries()):
        pytest.skip("needs the self-contained programs of the wheel")
    prefix = find_binaries().parent
    private = tmp_path / binaries.WHEEL / prefix.name
    for part in ("bin", "lib", "share"):
        shutil.copytree(prefix / part, private / part)
    libraries = prefix.parent.with_name(f"{binaries.WHEEL}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, tmp_path / libraries.name)
    monkeypatch.setenv("AWA_PG_BIN", str(private / "bin"))
    monkeypatch.setattr(binaries, "CACHE_PARENTS", (str(public_directory),))
    unprivileged = account.server_account(tmp_path / "missing")
    assert not unprivileged.can_run(private / "bin" / "postgres")
    for _ in range(2):
        with EmbeddedPostgres(settings=QUICK) as server:
            assert is_up(server.url)
            assert psutil.Process(server.server_pid).exe().startswith(f"{public_directory}/awa-embedded-")
    (copy,) = public_directory.iterdir()
    copy.chmod(0o777)
    with pytest.raises(EmbeddedError, match="cannot run"):
        EmbeddedPostgres(settings=QUICK).start()


@needs_root
def test_unprivileged_user_can_run_the_server(public_directory: Path, start_user: Callable[..., User]) -> None:
    python = _python_for_any_user()
    os.chown(public_directory, NOBODY, NOBODY)
    environment = {"AWA_PG_BIN": str(find_binaries()), "PYTHONPATH": IMPORT_PATH, "PATH": os.environ["PATH"]}
    ordinary = {"user": NOBODY, "group": NOBODY, "extra_groups": [], "cwd": "/", "env": environment}
    first = start_user(public_directory / "data", python=python, **ordinary)
    second = start_user(public_directory / "data", python=python, **ordinary)
    assert query(second.url) == 1
    assert psutil.Process(first.guardian_pid).uids().real == NOBODY
    with pytest.raises(EmbeddedError, match="belongs to the user with uid"):
        EmbeddedPostgres(public_directory / "data").start()
    first.kill()
    assert query(second.url) == 1
    second.leave()
    assert not postgres_processes(public_directory / "data")


def _python_for_any_user() -> str:
    check = "import awa_py.embedded, sys; sys.exit(sys.version_info < (3, 11))"
    for python in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        try:
            answer = subprocess.run(
                [python, "-c", check],
                user=NOBODY,
                group=NOBODY,
                extra_groups=[],
                cwd="/",
                env={"PYTHONPATH": IMPORT_PATH},
                capture_output=True,
                check=False,
            )
        except OSError:
            continue
        if answer.returncode == 0:
            return python
    pytest.skip("there is no Python that user nobody can run")
