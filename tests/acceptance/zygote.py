"""Run `awa` commands in processes that are forked from one that has imported everything already.

A command is a real process with its own files, environment and exit code. Only the half second is saved in which Python
imports modules and typer builds its commands. Requests and answers are lines of JSON on standard input and output.
"""

import io
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from contextlib import redirect_stderr, suppress
from functools import cache
from typing import Any, BinaryIO, NoReturn

import typer.main
from awa_cli.main import main

TIMEOUT_S = 120  # then SIGALRM ends the command
WARM_UP = ["awa", "job", "show", "first"]  # a mistake: loads what parses options and what shows errors


def warm_up() -> None:
    """Load what a command would load when it runs."""
    typer.main.get_command = cache(typer.main.get_command)
    sys.argv = WARM_UP
    with redirect_stderr(io.StringIO()), suppress(SystemExit):
        main()


def serve() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            given.write(request["stdin"].encode())
            given.seek(0)
            pid = os.fork()
            if pid == 0:
                become(request, given, out, err)
            _, status = os.waitpid(pid, 0)
            answer = {"code": os.waitstatus_to_exitcode(status), "out": content(out), "err": content(err)}
        print(json.dumps(answer), flush=True)


def become(request: dict[str, Any], given: BinaryIO, out: BinaryIO, err: BinaryIO) -> NoReturn:
    """Turn this process into the command."""
    for target, source in enumerate((given, out, err)):
        os.dup2(source.fileno(), target)
    signal.alarm(TIMEOUT_S)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    sys.argv = ["awa", *request["arguments"]]
    sys.path.insert(0, request["cwd"])
    code = 1
    try:
        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def content(file: BinaryIO) -> str:
    file.seek(0)
    return file.read().decode()


if __name__ == "__main__":
    warm_up()
    serve()
