"""Reload on SIGHUP: restart the same command in the same process, with the current settings of its file.

    check    a child process reads the settings and imports the app, as a start would; on an error, nothing changes
    drain    running jobs finish, as at a stop
    exec     the process replaces itself and keeps its pid, so that all settings and new code take effect

docs/decisions/0011 explains why it is not done in place.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from awa_py.errors import AwaError, ConfigError
from awa_py.systemd import envfile
from awa_py.systemd.notifier import VARIABLES

FILE_VARIABLE = "AWA_ENV_FILE"
CHECK_VARIABLE = "AWA_CHECK"
CHECK_TIMEOUT_S = 30.0


class RestartRequested(Exception):
    """Ends a command that must be restarted with this environment."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        super().__init__("the command restarts")
        self._environ = environ

    def exec(self) -> NoReturn:
        """Replace this process with a new one."""
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the new process handles it, it would be fatal
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(sys.executable, _command(), dict(self._environ))


class Reload:
    """Handles SIGHUP. Only enabled with AWA_ENV_FILE: closing a terminal also sends SIGHUP, and must not restart."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = dict(environ)
        path = environ.get(FILE_VARIABLE)
        self._path = None if path is None else Path(path)
        self._file_variables = set(self._read()) if self.enabled else set()
        self.next_environ: dict[str, str] | None = None  # set after a successful check

    @property
    def enabled(self) -> bool:
        return self._path is not None

    def check(self) -> None:
        """Check the file's settings in a child process, and keep them for the restart. Blocks.

        Raise ConfigError if the command would not start with them.
        """
        assert self._path is not None
        inherited = {name: value for name, value in self._environ.items() if name not in self._file_variables}
        environ = inherited | envfile.read(self._path)
        trial = {name: value for name, value in environ.items() if name not in VARIABLES}
        try:
            result = subprocess.run(
                _command(),
                env=trial | {CHECK_VARIABLE: "1", "TYPER_USE_RICH": "0"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=CHECK_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ConfigError(f"the check of the settings took longer than {CHECK_TIMEOUT_S:.0f} s") from None
        if result.returncode:
            raise ConfigError(result.stderr.decode(errors="replace").strip() or f"exit code {result.returncode}")
        self.next_environ = environ

    def restart_if_requested(self) -> None:
        """Raise RestartRequested if a reload was checked successfully."""
        if self.next_environ is not None:
            raise RestartRequested(self.next_environ)

    def _read(self) -> dict[str, str]:
        assert self._path is not None
        try:
            return envfile.read(self._path)
        except AwaError:
            return {}  # reported when it is read again


def _command() -> list[str]:
    return [sys.executable, *sys.orig_argv[1:]]
