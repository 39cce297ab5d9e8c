"""Run the `awa` command as users do, as a process with an exit code and output."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

TASKS = """
import awa_py as awa

app = awa.App()
number = 5


@app.job(queue="email")
async def greet(name: str) -> str:
    return f"hello {name}"


@app.job
async def hand_on(name: str) -> None:
    await greet.enqueue(name=name)


@app.job(max_attempts=1)
async def break_down() -> None:
    raise ValueError("it broke")


@app.cron("0 9 * * *", timezone="Pacific/Auckland", name="digest")
@app.job
async def digest() -> None: ...
"""


@dataclass(frozen=True)
class Answer:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Awa:
    """Runs `awa` on a database, in a directory with a module `tasks`."""

    def __init__(self, directory: Path, url: str | None, zygote: "subprocess.Popen[str]") -> None:
        self.directory = directory
        self._zygote = zygote
        self._started: list[subprocess.Popen[str]] = []
        (directory / "tasks.py").write_text(TASKS)
        without_awa = {name: value for name, value in os.environ.items() if not name.startswith("AWA_")}
        self.environ = {**without_awa, "COLUMNS": "200", **({} if url is None else {"AWA_DATABASE_URL": url})}

    def start(self, *arguments: str, env: Mapping[str, str] | None = None) -> "subprocess.Popen[str]":
        """Start a process. The caller ends it; if the test fails before, `kill_leftovers` does."""
        process = subprocess.Popen(
            [sys.executable, "-m", "awa_cli", *arguments],
            cwd=self.directory,
            env={**self.environ, **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def kill_leftovers(self) -> None:
        """Kill what still runs: the next test may get the same database, and would meet a foreign leader."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
                process.communicate()

    def run(self, *arguments: str, stdin: str = "", env: Mapping[str, str] | None = None) -> Answer:
        """Run a command to its end."""
        assert self._zygote.stdin is not None
        assert self._zygote.stdout is not None
        request = {
            "arguments": arguments,
            "cwd": str(self.directory),
            "env": {**self.environ, **(env or {})},
            "stdin": stdin,
        }
        self._zygote.stdin.write(json.dumps(request) + "\n")
        self._zygote.stdin.flush()
        return Answer(**json.loads(self._zygote.stdout.readline()))

    def __call__(self, *arguments: str, stdin: str = "", env: Mapping[str, str] | None = None) -> Answer:
        """Run a command that may fail, but must not print a traceback."""
        answer = self.run(*arguments, stdin=stdin, env=env)
        assert "Traceback" not in answer.err, answer.err
        return answer

    def ok(self, *arguments: str, stdin: str = "", env: Mapping[str, str] | None = None) -> Answer:
        """Run a command that must succeed."""
        answer = self(*arguments, stdin=stdin, env=env)
        assert answer.code == 0, answer.err
        return answer


@pytest.fixture(scope="session")
def zygote() -> "Iterator[subprocess.Popen[str]]":
    """The process that forks commands."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.acceptance.zygote"],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        process.kill()


@pytest.fixture
def awa(tmp_path: Path, database_url: str, zygote: "subprocess.Popen[str]") -> Iterator[Awa]:
    found = Awa(tmp_path, database_url, zygote)
    yield found
    found.kill_leftovers()


@pytest.fixture
def bare_awa(tmp_path: Path, zygote: "subprocess.Popen[str]") -> Awa:
    """`awa` without a database."""
    return Awa(tmp_path, None, zygote)
