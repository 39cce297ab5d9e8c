"""SIGHUP: the same command again, in the same process, with the settings that its file has now.

    check    a child reads the settings and imports the app, as a start would, and ends; a mistake: all stays as it was
    drain    running jobs finish as they do at a stop
    exec     the process becomes a new one with the same id: every setting counts, and so does new code

docs/decisions/0011 says why it is not done in place.
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
    """Ends a command that is to begin anew, with this environment."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        super().__init__("the command begins anew")
        self._environ = environ

    def exec(self) -> NoReturn:
        """Never returns: from here on, the process is the new one."""
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the new one can hear it, it would be deadly
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(sys.executable, _command(), dict(self._environ))


class Reload:
    """What a hang-up leads to. Only where AWA_ENV_FILE names a file: a closed terminal is no reason to begin anew."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = dict(environ)
        path = environ.get(FILE_VARIABLE)
        self._path = None if path is None else Path(path)
        self._set_by_file = set(self._read()) if self.enabled else set()
        self.next_environ: dict[str, str] | None = None  # checked, for the next run

    @property
    def enabled(self) -> bool:
        return self._path is not None

    def check(self) -> None:
        """Takes the file's settings for the next run. Raises ConfigError where it would not start; takes its time."""
        assert self._path is not None
        kept = {name: value for name, value in self._environ.items() if name not in self._set_by_file}
        environ = kept | envfile.read(self._path)
        trial = {name: value for name, value in environ.items() if name not in VARIABLES}
        try:
            answer = subprocess.run(
                _command(),
                env=trial | {CHECK_VARIABLE: "1", "TYPER_USE_RICH": "0"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=CHECK_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ConfigError(f"the check did not end within {CHECK_TIMEOUT_S:.0f} s") from None
        if answer.returncode:
            raise ConfigError(answer.stderr.decode(errors="replace").strip() or f"exit code {answer.returncode}")
        self.next_environ = environ

    def restart_if_requested(self) -> None:
        """Ends the command by RestartRequested where there is a next run."""
        if self.next_environ is not None:
            raise RestartRequested(self.next_environ)

    def _read(self) -> dict[str, str]:
        assert self._path is not None
        try:
            return envfile.read(self._path)
        except AwaError:
            return {}  # said when it is to be read again


def _command() -> list[str]:
    return [sys.executable, *sys.orig_argv[1:]]
