"""awa job tree, awa job rewind"""

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, NamedTuple

import typer
from rich.text import Text

from awa_py.model.job import Job
from awa_py.store.job_trees import MAX_TREE_JOBS, JobTree
from awa_py.text import count, escape

from .checkpoints import child_object, child_state, lifetime
from .environment import Environment
from .output import Row, ago, print_json, print_table, say
from .parsing import JobId, JsonOption


class Line(NamedTuple):
    """A line of a tree: a job, or the number of its siblings that are not shown."""

    indent: str
    job: Job | None
    hidden: int = 0


async def tree(env: Environment, job_id: JobId, as_json: JsonOption = False) -> None:
    """Show the whole tree of jobs that a job belongs to: its ancestors, their children, and so on."""
    async with env.client() as client:
        found = await client.tree(job_id)
        async with client.session() as session:
            now = await session.now()
    if as_json:
        jobs = [
            {**child_object(line.job), "hidden_children": found.hidden.get(line.job.id, 0)}
            for line in _lines(found)
            if line.job is not None
        ]
        print_json({"root": found.root.id, "is_cut": found.is_cut, "jobs": jobs})
        return
    print_table([_row(line, job_id, now) for line in _lines(found)], empty="")
    if found.is_cut:
        say(f"The tree is larger: these are {count(MAX_TREE_JOBS, 'job')} of it.")


async def rewind(
    env: Environment,
    job_id: JobId,
    to: Annotated[str, typer.Option("--to", metavar="STEP", help="The step to run again, with all that follow.")],
    as_json: JsonOption = False,
) -> None:
    """Run a durable job again from one of its steps.

    The step and those that were called after it are forgotten, their unfinished children are cancelled, and the job is
    available with all of its attempts. A running job is refused.
    """
    async with env.client() as client:
        done = await client.rewind(job_id, to=to)
    if as_json:
        print_json({"id": job_id, "forgotten": done.forgotten, "cancelled": done.cancelled})
        return
    names = ", ".join(f'"{name}"' for name in done.forgotten)
    say(f"job {job_id}: available. {count(len(done.forgotten), 'step')} forgotten: {names}")
    if done.cancelled:
        say(f"cancelled children: {', '.join(map(str, done.cancelled))}")


def _lines(found: JobTree) -> Iterator[Line]:
    """Yield the jobs of a tree in order. Not recursive: a tree may be a chain of a thousand jobs."""
    left: list[tuple[Line, str]] = [(Line("", found.root), "")]  # with the indent of their children
    while left:
        line, indent = left.pop()
        yield line
        if line.job is None:
            continue
        children: list[Job | None] = [*found.children.get(line.job.id, ())]
        hidden = found.hidden.get(line.job.id, 0)
        if hidden:
            children.append(None)
        for n, child in reversed(list(enumerate(children, start=1))):
            is_last = n == len(children)
            branch = f"{indent}{'└─ ' if is_last else '├─ '}"
            left.append((Line(branch, child, hidden), indent + ("   " if is_last else "│  ")))


def _row(line: Line, asked: int, now: datetime) -> Row:
    job = line.job
    if job is None:
        text = f"{line.indent}… and {line.hidden:,} more"
        return {"job": Text(text), "kind": None, "state": None, "created": Text(""), "took": Text("")}
    return {
        "job": Text(f"{line.indent}{job.id}", style="bold" if job.id == asked else ""),
        "kind": Text(escape(job.kind)),
        "state": child_state(job, now),
        "created": Text(ago(job.created_at, now)),
        "took": Text(lifetime(job), justify="right"),
    }
