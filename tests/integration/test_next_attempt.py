"""What a handler gets to see of the attempt before: progress and metadata."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

import awa_py as awa
from awa_py import App, Context
from tests.support import PATIENCE_S, QUICK, eventually, seconds, with_settings, working

pytestmark = pytest.mark.integration

HALFWAY = {"fraction": 0.5, "message": "halfway"}
METADATA = {"order": [7]}
LARGE = {"text": "x" * 100_000}  # does not fit into the answer to a limited claim


async def fail() -> None:
    raise ValueError("boom")


async def retry() -> None:
    raise awa.Retry(after=0)


async def snooze() -> None:
    raise awa.Snooze(0)


async def time_out() -> None:
    await asyncio.sleep(PATIENCE_S)


@pytest.mark.parametrize("end", [fail, retry, snooze, time_out])
async def test_handler_sees_progress_and_metadata_of_the_attempt_before(
    app: App, end: Callable[[], Awaitable[None]]
) -> None:
    seen: list[Any] = []

    @app.job(timeout="500ms" if end is time_out else None, metadata=METADATA)
    async def work(ctx: Context) -> None:
        seen.append((ctx.job.progress, ctx.job.metadata))
        if len(seen) == 1:
            ctx.progress(0.5, "halfway")
            await end()

    async with app, working(app, maintenance=True):
        await app.result(await work.enqueue(), timeout=PATIENCE_S)
    assert seen == [(None, METADATA), (HALFWAY, METADATA)]


@pytest.mark.parametrize("metadata", [METADATA, LARGE], ids=["small", "large"])
async def test_handler_in_a_thread_sees_them_after_a_limited_claim(app: App, metadata: dict[str, Any]) -> None:
    seen: list[Any] = []

    @app.job(concurrency_key="one", metadata=metadata)
    def work(ctx: Context) -> None:
        seen.append((ctx.job.progress, ctx.job.metadata))
        if len(seen) == 1:
            ctx.progress(0.5, "halfway")
            raise awa.Retry(after=0)

    async with app, working(app, maintenance=True):
        await app.result(await work.enqueue(), timeout=PATIENCE_S)
    assert seen == [(None, metadata), (HALFWAY, metadata)]


async def test_handler_sees_them_after_the_worker_before_released_its_job(database_url: str) -> None:
    app = with_settings(database_url, replace(QUICK, shutdown_timeout=seconds(0.01)))
    reported = threading.Event()
    seen: list[Any] = []

    @app.job(metadata=METADATA)
    async def work(ctx: Context) -> None:
        seen.append((ctx.attempt, ctx.job.progress, ctx.job.metadata))
        if len(seen) == 1:
            ctx.progress(0.5, "halfway")
            reported.set()
            await asyncio.sleep(PATIENCE_S)

    async with app:
        async with working(app):
            job = await work.enqueue()
            await eventually(reported.is_set)
        async with working(app):
            await app.result(job, timeout=PATIENCE_S)
    assert seen == [(1, None, METADATA), (1, HALFWAY, METADATA)]
