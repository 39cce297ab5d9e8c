"""The jobs of `awa demo`, and an example of what an app looks like: `awa worker awa_cli.demo.jobs:app -q mail`."""

import asyncio
import time

import awa_py as awa

app = awa.App()

SECTIONS = 12


class MailServerBusy(Exception):
    """What mail servers say when they are asked too often."""


@app.job(queue="mail", max_attempts=5, timeout="10s")
async def send_receipt(ctx: awa.Context, order: int) -> None:
    """Fails now and then. It raises, and awa tries again: after 1 s, 2 s, 4 s, …"""
    await asyncio.sleep(0.05)
    if order % 8 == 0 and ctx.attempt == 1:
        raise MailServerBusy("try later")


@app.job(queue="images")
def resize_image(ctx: awa.Context, path: str, width: int) -> dict[str, object]:
    """Not asynchronous, so that it runs in a thread; says how far it has come; returns a result."""
    for percent in (25, 50, 75, 100):
        time.sleep(0.1)
        ctx.progress(percent / 100, f"{percent}% of {path}")
    return {"path": f"{path}@{width}", "width": width}


@app.job(queue="reports", max_attempts=3)
async def long_report(ctx: awa.Context, month: str) -> dict[str, object]:
    """Takes seconds, and survives the death of its worker: another one runs it again."""
    for section in range(1, SECTIONS + 1):
        await asyncio.sleep(0.25)
        ctx.progress(section / SECTIONS, f"section {section} of {SECTIONS}")
    return {"month": month, "sections": SECTIONS, "attempt": ctx.attempt}


@app.cron("*/3 * * * * *", name="rates")  # six fields: the first one counts seconds
@app.job(max_attempts=1)
async def fetch_rates() -> dict[str, float]:
    """Enqueued by the leader whenever its schedule fires."""
    await asyncio.sleep(0.05)
    return {"NZD": 1.0, "EUR": 0.55, "USD": 0.6}


@app.job(queue="bulk")
async def count_click(page: int) -> None:
    """Does nothing, thousands of times: what is left is the speed of the queue itself."""
