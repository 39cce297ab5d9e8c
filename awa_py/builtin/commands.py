"""`cmd_exec`: a program of a directory that the operator allows, run with its arguments, and never by a shell."""

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
END_PATIENCE_S = command_runner.GRACE_S + command_runner.BURIAL_S + 5
ESCAPED = 6  # bytes of JSON that a byte of output may become
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# With these, whoever may enqueue could have a program of the root run code from elsewhere. No such list is complete,
# as docs/builtin.md says; it goes by shapes, so that it also knows names that nobody thought of.
_FORBIDDEN = re.compile(
    r"""
      (_ | LD_ | DYLD_ | GLIBC_ | GCONV_).*                                          # the loader, _JAVA_OPTIONS
    | (BASH | PERL | PYTHON | RUBY | PHP | TCL | RUST | MAKE | LESS).*               # shells, interpreters, tools
    | (PIP | UV | GEM | BUNDLE | NODE | NPM | npm | YARN | DENO | BUN)_.*
    | (JAVA | JDK | DOTNET | CORECLR | COR | LUA | ERL | GUILE | JULIA | R)_.*
    | (GIT | SSH | SSL | OPENSSL | RSYNC | TAR | CURL | CARGO | CMAKE | GDB | ANSIBLE | TF)_.*
    | (XDG | GTK | GDK | GIO | GST | QT | DBUS | SYSTEMD | SUDO | MAGICK | GS)_.*
    | .*(HOME | RSH | SSH | SHELL | EDITOR | PAGER | BROWSER | VISUAL | ASKPASS)     # where it is, and what to call
    | .*_(COMMAND | CMD | PROGRAM | WRAPPER | HOOKS? | PRELOAD | STARTUP)
    | .*(OPTIONS? | OPTS? | FLAGS | _ARGS | _DEFAULTS)                               # arguments by the back door
    | .*(INIT | (?<!S)RC | CONF | CONFIG | CFG)(_FILE | _PATH | _DIR)?               # files that are read first
    | .*PLUGINS?(_DIR | _PATH)?
    | [A-Z0-9]*PATH | .*_LIBRARY_PATH                                                # PATH, CLASSPATH; not BACKUP_PATH
    | ENV | IFS | PS4 | GLOBIGNORE | ZDOTDIR | FCEDIT | TERMINFO(_DIRS)? | TERMCAP
    | CC | CXX | CPP | LD | AR | AS | TAPE | UNZIP | ZIPINFO | GZIP | BZIP2? | WGET.*
    | AWA_(APP | ENV_FILE | PG_BIN | ALLOW_EXEC)
    """,
    re.VERBOSE,
)


class Commands:
    """Runs programs of one directory."""

    def __init__(self, root: Path, *, max_result_bytes: int) -> None:
        self._root = root.resolve()
        self._kept_bytes = max(1, min(OUTPUT_BYTES, max_result_bytes // ESCAPED - ERROR_BYTES))

    async def cmd_exec(
        self,
        argv: list[str],
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        stdin: str | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> dict[str, Any]:
        """EnqueuedJobs the exit code, which is 0, and the last part of what the program wrote.

        However it ends, nothing of it is left: neither the program, nor what it started.
        """
        _check(argv, env or {}, cwd, timeout_s)
        orders = {
            "root": str(self._root),
            "argv": argv,
            # Not the worker's own environment: that holds the database's password.
            "env": {"PATH": PATH, "HOME": str(self._root), "LANG": "C.UTF-8", **(env or {})},
            "cwd": cwd,
            "stdin": stdin,
        }
        output = Tail(self._kept_bytes)
        report = await _run(orders, output, timeout_s)
        if report is None:
            raise Retry(f"timed out after {timeout_s:g} s: {output.last(ERROR_BYTES) or 'no output'}")
        return _result(report, output)


async def _run(orders: dict[str, Any], output: Tail, timeout_s: float) -> bytes | None:
    """The keeper's report; None: it took too long."""
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
    following = asyncio.create_task(output.follow(process.stdout))
    try:
        process.stdin.write(json.dumps(orders).encode() + b"\n")
        async with asyncio.timeout(timeout_s):
            return await process.stderr.read()
    except TimeoutError:
        return None
    finally:
        _stop(process.stdin)  # the keeper ends all that is left
        await _ended(process, following)


def _stop(lifeline: asyncio.StreamWriter) -> None:
    """Says so, and does not only close: a process that a handler has forked holds the same pipe open."""
    if not lifeline.is_closing():  # as it is where the keeper has ended; uvloop takes a write then for a mistake
        lifeline.write(command_runner.STOP)
    lifeline.close()


async def _ended(process: Process, following: "asyncio.Task[None]") -> None:
    """Waits for the end of the keeper and of the output, and not for ever. Who is cancelled meanwhile still waits."""
    waiting = asyncio.create_task(process.wait())
    cancelled: asyncio.CancelledError | None = None
    ends_at = asyncio.get_running_loop().time() + END_PATIENCE_S
    while (left_s := ends_at - asyncio.get_running_loop().time()) > 0 and not (waiting.done() and following.done()):
        try:
            await asyncio.wait({waiting, following}, timeout=left_s)
        except asyncio.CancelledError as error:
            cancelled = error
    if not waiting.done():
        with suppress(ProcessLookupError):
            process.kill()
    waiting.cancel()
    following.cancel()
    if cancelled is not None:
        raise cancelled


def _result(report: bytes, output: Tail) -> dict[str, Any]:
    last = output.last(ERROR_BYTES) or "no output"
    try:
        end = json.loads(report)
    except ValueError:
        raise Retry(f"the command's keeper was ended: {last}") from None
    match end:
        case {"exit_code": 0}:
            return {"exit_code": 0, "output": output.text}
        case {"exit_code": int(code)}:
            raise Retry(f"exit {code}: {last}")
        case {"signal": int(number)}:
            raise Retry(f"killed by {_signal_name(number)}: {last}")
        case {"refused": str(reason)}:
            raise Fail(reason)
        case {"failed": str(reason)}:
            raise Retry(reason)
        case _:
            raise Retry(f"the command's keeper said what it should not: {report!r}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time one
        return f"signal {number}"


def _check(argv: list[str], env: dict[str, str], cwd: str | None, timeout_s: float) -> None:
    """What could not be run, however often it is tried."""
    if not argv or not argv[0]:
        raise Fail("argv names no program: its first word is the program's path inside of the root")
    if any("\x00" in text for text in (*argv, *env.values(), cwd or "")):  # JSON from elsewhere; PostgreSQL has none
        raise Fail("argv, env and cwd cannot hold a NUL")
    if not (timeout_s > 0 and math.isfinite(timeout_s)):
        raise Fail(f"timeout_s is how many seconds it may take, more than 0, not {timeout_s:g}")
    for name in env:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise Fail(f"env: {name!r} is no name of a variable")
        if _FORBIDDEN.fullmatch(name):
            raise Fail(f"env: {name} may not be set: such names can decide which code is run; use argv or stdin")
