"""`cmd_exec`: run a program from a directory that the operator allows, without a shell."""

import asyncio
import json
import math
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from pathlib import Path
from typing import Any

from awa_py.builtin import command_runner
from awa_py.builtin.tail import Tail
from awa_py.model.outcomes import Fail, Retry

TIMEOUT_S = 600.0
OUTPUT_BYTES = 64 * 1024
ERROR_BYTES = 256
END_TIMEOUT_S = command_runner.GRACE_S + command_runner.REAP_TIMEOUT_S + 5
MAX_ESCAPE_BYTES = 6  # of JSON per byte of output
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# With these variables, a client that may enqueue could make a program in the root run code from elsewhere. No such list
# is complete, as docs/builtin.md says. It has patterns, so that it also matches names that are not known yet.
_FORBIDDEN = re.compile(
    r"""
      (_ | LD_ | DYLD_ | GLIBC_ | GCONV_).*                                          # the loader, _JAVA_OPTIONS
    | (BASH | PERL | PYTHON | RUBY | PHP | TCL | RUST | MAKE | LESS).*               # shells, interpreters, tools
    | (PIP | UV | GEM | BUNDLE | NODE | NPM | npm | YARN | DENO | BUN)_.*
    | (JAVA | JDK | DOTNET | CORECLR | COR | LUA | ERL | GUILE | JULIA | R)_.*
    | (GIT | SSH | SSL | OPENSSL | RSYNC | TAR | CURL | CARGO | CMAKE | GDB | ANSIBLE | TF)_.*
    | (XDG | GTK | GDK | GIO | GST | QT | DBUS | SYSTEMD | SUDO | MAGICK | GS)_.*
    | .*(HOME | RSH | SSH | SHELL | EDITOR | PAGER | BROWSER | VISUAL | ASKPASS)     # homes, programs to call
    | .*_(COMMAND | CMD | PROGRAM | WRAPPER | HOOKS? | PRELOAD | STARTUP)
    | .*(OPTIONS? | OPTS? | FLAGS | _ARGS | _DEFAULTS)                               # additional arguments
    | .*(INIT | (?<!S)RC | CONF | CONFIG | CFG)(_FILE | _PATH | _DIR)?               # files that are read at startup
    | .*PLUGINS?(_DIR | _PATH)?
    | [A-Z0-9]*PATH | .*_LIBRARY_PATH                                                # PATH, CLASSPATH; not BACKUP_PATH
    | ENV | IFS | PS4 | GLOBIGNORE | ZDOTDIR | FCEDIT | TERMINFO(_DIRS)? | TERMCAP
    | CC | CXX | CPP | LD | AR | AS | TAPE | UNZIP | ZIPINFO | GZIP | BZIP2? | WGET.*
    | AWA_(APP | ENV_FILE | PG_BIN | ALLOW_EXEC)
    """,
    re.VERBOSE,
)


class Commands:
    """Runs programs in one directory."""

    def __init__(self, root: Path, *, max_result_bytes: int) -> None:
        self._root = root.resolve()
        self._kept_bytes = max(1, min(OUTPUT_BYTES, max_result_bytes // MAX_ESCAPE_BYTES - ERROR_BYTES))

    async def cmd_exec(
        self,
        argv: list[str],
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        stdin: str | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> dict[str, Any]:
        """Run a program and return its exit code, which is 0, and the end of its output.

        However it ends, neither the program nor any process that it started is left.
        """
        _check(argv, env or {}, cwd, timeout_s)
        request = {
            "root": str(self._root),
            "argv": argv,
            # Not the worker's environment, which contains the database password.
            "env": {"PATH": PATH, "HOME": str(self._root), "LANG": "C.UTF-8", **(env or {})},
            "cwd": cwd,
            "stdin": stdin,
        }
        output = Tail(self._kept_bytes)
        report = await _run(request, output, timeout_s)
        if report is None:
            raise Retry(f"timed out after {timeout_s:g} s: {output.last(ERROR_BYTES) or 'no output'}")
        return _result(report, output)


async def _run(request: dict[str, Any], output: Tail, timeout_s: float) -> bytes | None:
    """Return the command runner's report, or None after a timeout."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", command_runner.__file__, str(os.getpid())),
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        cwd="/",
        env={},
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    reading = asyncio.create_task(output.read(process.stdout))
    try:
        process.stdin.write(json.dumps(request).encode() + b"\n")
        async with asyncio.timeout(timeout_s):
            return await process.stderr.read()
    except TimeoutError:
        return None
    finally:
        _stop(process.stdin)  # the command runner then ends all processes of the command
        await _wait_for_end(process, reading)


def _stop(stdin: asyncio.StreamWriter) -> None:
    """Tell the command runner to stop. Closing is not enough: a forked process may hold the same pipe open."""
    if not stdin.is_closing():  # it is closing if the command runner has ended; uvloop then raises on a write
        stdin.write(command_runner.STOP)
    stdin.close()


async def _wait_for_end(process: Process, reading: "asyncio.Task[None]") -> None:
    """Wait, with a timeout, for the end of the command runner and of its output. A cancellation does not shorten it."""
    exiting = asyncio.create_task(process.wait())
    cancelled: asyncio.CancelledError | None = None
    ends_at = asyncio.get_running_loop().time() + END_TIMEOUT_S
    while (left_s := ends_at - asyncio.get_running_loop().time()) > 0 and not (exiting.done() and reading.done()):
        try:
            await asyncio.wait({exiting, reading}, timeout=left_s)
        except asyncio.CancelledError as error:
            cancelled = error
    if not exiting.done():
        with suppress(ProcessLookupError):
            process.kill()
    exiting.cancel()
    reading.cancel()
    if cancelled is not None:
        raise cancelled


def _result(report: bytes, output: Tail) -> dict[str, Any]:
    last = output.last(ERROR_BYTES) or "no output"
    try:
        end = json.loads(report)
    except ValueError:
        raise Retry(f"the command runner was killed: {last}") from None
    match end:
        case {"exit_code": 0}:
            return {"exit_code": 0, "output": output.text}
        case {"exit_code": int(code)}:
            raise Retry(f"exit {code}: {last}")
        case {"signal": int(number)}:
            raise Retry(f"killed by {_signal_name(number)}: {last}")
        case {"rejected": str(reason)}:
            raise Fail(reason)
        case {"failed": str(reason)}:
            raise Retry(reason)
        case _:
            raise Retry(f"the command runner sent an invalid report: {report!r}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def _check(argv: list[str], env: dict[str, str], cwd: str | None, timeout_s: float) -> None:
    """Raise Fail for arguments that no retry could make valid."""
    if not argv or not argv[0]:
        raise Fail("argv contains no program: its first item is the program's path inside the root")
    if any(
        "\x00" in text for text in (*argv, *env.values(), cwd or "")
    ):  # possible in a test or a direct call; PostgreSQL's JSON cannot contain it
        raise Fail("argv, env and cwd must not contain NUL characters")
    if not (timeout_s > 0 and math.isfinite(timeout_s)):
        raise Fail(f"timeout_s must be a number of seconds greater than 0, not {timeout_s:g}")
    for name in env:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise Fail(f"env: {name!r} is not a valid variable name")
        if _FORBIDDEN.fullmatch(name):
            raise Fail(
                f"env: {name} may not be set, since it could change which code is run; use argv or stdin instead"
            )
