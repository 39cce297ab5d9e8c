"""EmbeddedPostgres: one process's use of an embedded server."""

import fcntl
import os
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Literal, Self
from urllib.parse import quote

from awa_py.embedded import guardian
from awa_py.embedded.cluster import (
    DATABASE,
    SUPERUSER,
    Access,
    Home,
    is_port_free,
    make_home_private,
    open_home,
)
from awa_py.embedded.guardian import open_private
from awa_py.embedded.launcher import checked_settings, launch_guardian
from awa_py.embedded.lock import EXCLUSIVE, POLL_S, SHARED, open_lock, try_lock, wait_lock
from awa_py.errors import EmbeddedError

ShutdownMode = Literal["fast", "immediate", "kill"]

SIGNALS = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT, "kill": signal.SIGKILL}
SHUTDOWN_TIMEOUT_S = 60.0
START_ATTEMPTS = 3


class EmbeddedPostgres:
    """A PostgreSQL server that runs while a process uses it, shared by all processes that use its directory.

    Without `directory`, it uses a temporary one that is removed at the end. `settings` are PostgreSQL settings; they
    apply only if this process is the one that starts the server.

        with EmbeddedPostgres(Path("data")) as server:
            connection = await asyncpg.connect(server.url)
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        settings: Mapping[str, str] | None = None,
        startup_timeout: timedelta = timedelta(seconds=60),
    ) -> None:
        self._settings = checked_settings(settings or {})
        self._given_directory = directory
        self._startup_timeout_s = startup_timeout.total_seconds()
        self._home: Home | None = None
        self._access: Access | None = None
        self._users_fd: int | None = None
        self._hold_fd: int | None = None
        self._owner_pid = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """The server's URL over loopback TCP, including the password."""
        access = self._require_access()
        return f"postgresql://{SUPERUSER}:{access.password}@127.0.0.1:{access.port}/{DATABASE}"

    @property
    def socket_url(self) -> str | None:
        """The server's URL over its unix socket; None if the directory's path does not allow one."""
        access, home = self._require_access(), self._require_home()
        if not home.has_socket():
            return None
        host = quote(str(home.data), safe="")
        return f"postgresql://{SUPERUSER}:{access.password}@/{DATABASE}?host={host}&port={access.port}"

    @property
    def directory(self) -> Path:
        """The server's directory."""
        return self._require_home().path

    @property
    def server_pid(self) -> int:
        """The pid of PostgreSQL's main process; 0 if it is not running."""
        return self._status().server

    @property
    def guardian_pid(self) -> int:
        """The pid of the guardian; 0 if there is none."""
        return self._status().guardian

    def start(self) -> None:
        """Start the server or attach to the running one, and return once it accepts connections.

        Calling it again restores a server whose guardian was killed.
        """
        try:
            if self._users_fd is None:
                self._owner_pid = os.getpid()
                self._open_home()
                self._register_user(self._require_home())
            self._wait_until_ready()
        except BaseException:
            self._clean_up_failed_start()
            raise

    def stop(self) -> None:
        """Stop using the server. The last user waits until it is shut down.

        Does nothing if it was not started, or in a forked child: the parent uses the server.
        """
        if self._users_fd is None or self._owner_pid != os.getpid():
            return
        home, users_fd = self._require_home(), self._users_fd
        try:
            self._release_hold()
            # The exclusive lock fails if there are other users, or if the guardian holds it because it saw none.
            if try_lock(users_fd, EXCLUSIVE) or not try_lock(users_fd, SHARED):
                self._stop_guardian(home)
        finally:
            os.close(users_fd)
            self._users_fd = self._access = None

    def stop_server(self, mode: ShutdownMode = "fast") -> None:
        """Stop PostgreSQL for all users, and keep it down until start_server(), stop() or the end of this process."""
        home = self._require_home()
        if self._hold_fd is None:
            self._hold_fd = open_lock(home.hold_lock)
            fcntl.flock(self._hold_fd, fcntl.LOCK_EX)
        pid = self.server_pid
        if not pid:
            return
        with suppress(ProcessLookupError):
            os.kill(pid, SIGNALS[mode])
        deadline = time.monotonic() + SHUTDOWN_TIMEOUT_S
        while self.server_pid == pid:
            if time.monotonic() > deadline:
                raise EmbeddedError(f"{home.path}: the server did not stop within {SHUTDOWN_TIMEOUT_S:.0f} s")
            time.sleep(POLL_S)

    def start_server(self) -> None:
        """Start PostgreSQL again after stop_server(), at the same URL, and wait until it accepts connections."""
        self._release_hold()
        self._wait_until_ready()

    def restart(self, *, down_for: float = 0, mode: ShutdownMode = "fast") -> None:
        """Stop PostgreSQL for all users, wait `down_for` seconds, and start it again at the same URL."""
        self.stop_server(mode)
        time.sleep(down_for)
        self.start_server()

    def _open_home(self) -> None:
        if self._given_directory is not None:
            self._home = open_home(self._given_directory.expanduser().resolve())
        else:
            # Assigned before it is created: an interrupt in between must not leave it behind.
            self._home = Home(Path(tempfile.gettempdir()).resolve() / f"awa-{secrets.token_hex(6)}")
            self._home.path.mkdir(mode=0o700)
            make_home_private(self._home.path)

    def _register_user(self, home: Home) -> None:
        try:
            users_fd = open_lock(home.users_lock)
        except OSError as error:
            raise EmbeddedError(f"{home.path} cannot be used as a data directory: {error}") from error
        if not wait_lock(users_fd, SHARED, self._startup_timeout_s):
            os.close(users_fd)
            raise EmbeddedError(
                f"{home.path}: the server is shutting down after its last user left, and did not stop"
                f" within {self._startup_timeout_s:.0f} s; the end of {home.log}:\n{home.log_tail()}"
            )
        self._users_fd = users_fd

    def _wait_until_ready(self) -> None:
        home = self._require_home()
        deadline = time.monotonic() + self._startup_timeout_s
        attempts = 0
        while not self._is_ready():
            try:
                lock_fd = open_lock(home.guardian_lock)
            except OSError as error:
                raise EmbeddedError(f"{home.path} cannot be used as a data directory: {error}") from error
            try:
                if try_lock(lock_fd, EXCLUSIVE):
                    if attempts and not _may_retry(home, lock_fd, attempts):
                        raise EmbeddedError(self._failure(home, "did not start"))
                    attempts += 1
                    launch_guardian(home, lock_fd, settings=self._settings, temporary=self._given_directory is None)
            finally:
                os.close(lock_fd)
            if time.monotonic() > deadline:
                raise EmbeddedError(self._failure(home, f"did not start within {self._startup_timeout_s:.0f} s"))
            time.sleep(POLL_S)
        self._access = Access.read(home)

    def _is_ready(self) -> bool:
        return self._status().ready

    def _failure(self, home: Home, what: str) -> str:
        return f"{home.path}: the embedded PostgreSQL {what}; the end of {home.log}:\n{home.log_tail()}"

    def _stop_guardian(self, home: Home) -> None:
        """Tell the guardian that no user is left, and wait until it has shut the server down."""
        try:
            lock_fd = open_private(home.guardian_lock, os.O_RDWR)
        except OSError:
            return
        try:
            signalled = 0
            deadline = time.monotonic() + SHUTDOWN_TIMEOUT_S
            while not try_lock(lock_fd, EXCLUSIVE):
                if time.monotonic() > deadline:
                    raise EmbeddedError(self._failure(home, f"did not stop within {SHUTDOWN_TIMEOUT_S:.0f} s"))
                alive = guardian.Status.read(lock_fd).guardian
                if alive and alive != signalled:
                    with suppress(ProcessLookupError):
                        os.kill(alive, guardian.STOP_SIGNAL)
                    signalled = alive
                time.sleep(POLL_S)
        finally:
            os.close(lock_fd)

    def _clean_up_failed_start(self) -> None:
        """Stop after a failed start. There may be no guardian left that removes a temporary directory."""
        with suppress(EmbeddedError):
            self.stop()
        if self._home is not None and self._given_directory is None:
            shutil.rmtree(self._home.path, ignore_errors=True)

    def _release_hold(self) -> None:
        if self._hold_fd is not None:
            os.close(self._hold_fd)
            self._hold_fd = None

    def _status(self) -> guardian.Status:
        """Return the guardian's status; an empty one if it is dead, whatever its lock file contains."""
        try:
            lock_fd = open_private(self._require_home().guardian_lock, os.O_RDWR)
        except OSError:
            return guardian.Status()
        try:
            # Its pid is not enough: a zombie still has one.
            if try_lock(lock_fd, SHARED):
                return guardian.Status()
            status = guardian.Status.read(lock_fd)
        finally:
            os.close(lock_fd)
        # The lock is not enough either: its next holder may not have cleared the old status yet.
        return status if guardian.is_alive(status.guardian) else guardian.Status()

    def _require_home(self) -> Home:
        if self._home is None:
            raise EmbeddedError("the embedded PostgreSQL is not started: call start(), or use `with`")
        return self._home

    def _require_access(self) -> Access:
        if self._access is None:
            raise EmbeddedError("the embedded PostgreSQL is not started: call start(), or use `with`")
        return self._access


def _may_retry(home: Home, lock_fd: int, attempts: int) -> bool:
    """Return whether a start failed for a reason that may be gone: a killed guardian, or a port in use."""
    was_killed = guardian.Status.read(lock_fd).guardian != 0
    return attempts < START_ATTEMPTS and (was_killed or not is_port_free(Access.read(home).port))
