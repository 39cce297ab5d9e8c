"""A parent of many children. Its handler appends a line to the file AWA_TEST_LOG in each attempt."""

import awa_py as awa
from tests.chaos.durable_jobs import note

app = awa.App()


@app.job
async def square(number: int) -> int:
    return number * number


@app.job
async def parent(ctx: awa.Context, children: int) -> int:
    note("attempt", ctx.job.lease)
    return sum(await ctx.map(square, range(children)))
