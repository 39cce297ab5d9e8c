"""The examples in the pages about durable jobs run as they are written."""

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import awa_py as awa
from awa_py.store.session import Session
from tests.support import working

pytestmark = pytest.mark.integration

DOCS = Path(__file__).parents[2] / "docs"


class Page:
    """The examples of a page: those that define jobs, and those that a program awaits."""

    def __init__(self, name: str) -> None:
        self.names: dict[str, Any] = {"__name__": "example"}
        self.programs: list[Any] = []
        for block in re.findall(r"```python\n(.*?)```", (DOCS / name).read_text(), re.S):
            code = compile(block, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
            if code.co_flags & inspect.CO_COROUTINE:
                self.programs.append(code)
            else:
                exec(code, self.names)
        self.app: awa.App = self.names["app"]

    async def run(self, kind: str, **args: Any) -> Any:
        async with self.app, working(self.app, maintenance=True):
            return await self.app.result(await self.app.enqueue(kind, args), timeout="20s")


@pytest.fixture(autouse=True)
def set_database(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWA_DATABASE_URL", database_url)


@pytest.mark.parametrize(
    ("kind", "args", "result"),
    [
        ("order", {"order_id": 5}, "charge-5: 19.90"),
        ("gallery", {"paths": ["a.png", "bc.png"]}, 11),
        ("report", {"order_id": 5}, "order 5 costs 19.90"),
        ("sell", {"account": "ann"}, 1),
        ("settle", {"account": "ann"}, {"booking": 1}),
    ],
)
async def test_steps(session: Session, kind: str, args: dict[str, Any], result: object) -> None:
    await session.connection.execute("CREATE TABLE public.bookings (id serial, account text, amount int)")
    assert await Page("steps.md").run(kind, **args) == result


async def test_signals() -> None:
    page = Page("timers-and-signals.md")
    (program,) = page.programs
    async with page.app, working(page.app, maintenance=True):
        await eval(program, page.names)
        assert await page.app.result(page.names["job"], timeout="20s") == "chair: approved by ann"


async def test_first() -> None:
    page = Page("timers-and-signals.md")
    async with page.app, working(page.app, maintenance=True):
        job = await page.names["invoice"].enqueue()
        await page.app.signal(job.id, "paid")
        assert await page.app.result(job, timeout="20s") == "paid"


async def test_children() -> None:
    assert await Page("children.md").run("gallery", paths=["a.png", "bc.png"]) == 20
