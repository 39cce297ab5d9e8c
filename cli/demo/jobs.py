"""The jobs of `awa demo`, and an example of an app: `awa worker awa_cli.demo.jobs:app -q mail`."""

import asyncio
import time

import awa_py as awa

app = awa.App()

SECTIONS = 12


class MailServerBusy(Exception):
    """The mail server refused the message."""


@app.job(queue="mail", max_attempts=5, timeout="10s")
async def send_receipt(ctx: awa.Context, order: int) -> None:
    """Fail every eighth time: an exception makes awa try again after 1 s, 2 s, 4 s, …"""
    await asyncio.sleep(0.05)
    if order % 8 == 0 and ctx.attempt == 1:
        raise MailServerBusy("try later")


@app.job(queue="images")
def resize_image(ctx: awa.Context, path: str, width: int) -> dict[str, object]:
    """Run in a thread, because the function is not async; report progress and return a result."""
    for percent in (25, 50, 75, 100):
        time.sleep(0.1)
        ctx.progress(percent / 100, f"{percent}% of {path}")
    return {"path": f"{path}@{width}", "width": width}


@app.job(queue="reports", max_attempts=3)
async def long_report(ctx: awa.Context, month: str) -> dict[str, object]:
    """Run for seconds. If the worker dies, another worker runs the job again."""
    for section in range(1, SECTIONS + 1):
        await asyncio.sleep(0.25)
        ctx.progress(section / SECTIONS, f"section {section} of {SECTIONS}")
    return {"month": month, "sections": SECTIONS, "attempt": ctx.attempt}


@app.cron("*/3 * * * * *", name="rates")  # with six fields, the first one is seconds
@app.job(max_attempts=1)
async def fetch_rates() -> dict[str, float]:
    """Fetch exchange rates. The leader enqueues this job every three seconds."""
    await asyncio.sleep(0.05)
    return {"NZD": 1.0, "EUR": 0.55, "USD": 0.6}


@app.job(queue="bulk")
async def count_click(page: int) -> None:
    """Do nothing, thousands of times, to show the speed of the queue itself."""
