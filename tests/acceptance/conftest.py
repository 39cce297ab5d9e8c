"""The `awa` command as people run it: a process, its exit code, its output."""

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
    """What a command said, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Awa:
    """Runs `awa` in a directory that has a module `tasks`, against a database."""

    def __init__(self, directory: Path, url: str | None, zygote: "subprocess.Popen[str]") -> None:
        self.directory = directory
        self._zygote = zygote
        (directory / "tasks.py").write_text(TASKS)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AWA_")}
        kept.pop("DATABASE_URL", None)
        self._env = {**kept, "COLUMNS": "200", **({} if url is None else {"AWA_DATABASE_URL": url})}

    def start(self, *arguments: str, env: Mapping[str, str] | None = None) -> "subprocess.Popen[str]":
        """The process, running; the caller ends it."""
        return subprocess.Popen(
            [sys.executable, "-m", "awa_cli", *arguments],
            cwd=self.directory,
            env={**self._env, **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *arguments: str, stdin: str = "", env: Mapping[str, str] | None = None) -> Answer:
        """How the command ends, whatever it does."""
        assert self._zygote.stdin is not None
        assert self._zygote.stdout is not None
        request = {
            "arguments": arguments,
            "cwd": str(self.directory),
            "env": {**self._env, **(env or {})},
            "stdin": stdin,
        }
        self._zygote.stdin.write(json.dumps(request) + "\n")
        self._zygote.stdin.flush()
        answer = Answer(**json.loads(self._zygote.stdout.readline()))
        assert "Traceback" not in answer.err, answer.err
        return answer

    def ok(self, *arguments: str, stdin: str = "", env: Mapping[str, str] | None = None) -> Answer:
        """The same, for a command that has to succeed."""
        answer = self(*arguments, stdin=stdin, env=env)
        assert answer.code == 0, answer.err
        return answer


@pytest.fixture(scope="session")
def zygote() -> "Iterator[subprocess.Popen[str]]":
    """The process from which commands are forked."""
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
def awa(tmp_path: Path, database_url: str, zygote: "subprocess.Popen[str]") -> Awa:
    return Awa(tmp_path, database_url, zygote)


@pytest.fixture
def bare_awa(tmp_path: Path, zygote: "subprocess.Popen[str]") -> Awa:
    """Without any database."""
    return Awa(tmp_path, None, zygote)
