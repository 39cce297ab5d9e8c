"""`awa.flow`: the job of a flow. It runs the jobs of the flow as its children, each when those before it have ended."""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

from awa_py.errors import ChildFailed
from awa_py.model.children import Child
from awa_py.model.context import Context
from awa_py.model.flow import Results, filled, job_from_json, names_in
from awa_py.model.job import Job, NewJob
from awa_py.model.outcomes import Fail
from awa_py.model.registry import Handler, Registry

KIND = "awa.flow"


async def run_flow(ctx: Context, nodes: list[dict[str, Any]], results: Any) -> Any:
    """Run the jobs of a flow, and return their results. Fail if a job failed on which the results depend."""
    try:
        flow = _FlowRun(ctx, {node["name"]: _Node(**node) for node in nodes})
        wanted = list(names_in(results))
        for name in [*wanted, *(name for node in flow.nodes.values() for name in node.after)]:
            flow.nodes[name]
    except (KeyError, TypeError, AttributeError) as error:
        raise Fail(f"these are not the arguments of a flow: {error!r}: start it with app.start()") from None
    return await flow.run(results)


FLOW = replace(Handler.from_function(KIND, run_flow), is_declared=False)


def add_flow(registry: Registry) -> None:
    """Register the kind of flows."""
    registry.add(FLOW)


@dataclass(frozen=True, slots=True)
class _Node:
    name: str
    job: dict[str, Any]
    after: list[str]
    takes: dict[str, Results]
    if_failed: str


class _ChildJob:
    """A job that `ctx.spawn` can spawn."""

    def __init__(self, job: NewJob) -> None:
        self.kind = job.kind
        self._job = job

    def __wrapped__(self) -> Any: ...  # its annotation is the type of the result

    def new(self) -> NewJob:
        return self._job

    def enqueue(self) -> Coroutine[Any, Any, Job]:
        raise NotImplementedError  # only type checkers need it


class _FlowRun:
    """One attempt of a flow. It records only its children and their arguments, and looks anew at what has ended."""

    def __init__(self, ctx: Context, nodes: dict[str, _Node]) -> None:
        self.nodes = nodes
        self._ctx = ctx
        self._children: dict[str, asyncio.Future[Child[Any] | None]] = {}
        self._failures: dict[str, ChildFailed] = {}

    async def run(self, results: Results) -> Any:
        needed = {name for node in self.nodes.values() for name in node.after}
        last = [name for name in self.nodes if name not in needed]
        children = await self._start_all(last)
        values = await self._results(last, children)
        if len(values) < len(last):
            not_run = [name for name in self.nodes if self._children[name].result() is None]
            texts = [f"{name}: {error}" for name, error in self._failures.items()]
            raise Fail("; ".join([*texts, f"not run: {', '.join(not_run)}"] if not_run else texts))
        return filled(results, values)

    async def _start_all(self, names: Sequence[str]) -> list[Child[Any] | None]:
        """Start nodes, the last one in this task: if it is the only one that waits, the job is suspended at once."""
        async with asyncio.TaskGroup() as tasks:
            others = [tasks.create_task(self._start(name)) for name in names[:-1]]
            last = await self._start(names[-1])
        return [*(task.result() for task in others), last]

    async def _start(self, name: str) -> Child[Any] | None:
        """Start a node when those before it have ended. Return its child, or None if it does not run."""
        if name not in self._children:
            self._children[name] = asyncio.get_running_loop().create_future()
            self._children[name].set_result(await self._spawn(self.nodes[name]))
        return await self._children[name]

    async def _spawn(self, node: _Node) -> Child[Any] | None:
        args = dict(node.job["args"])
        values: dict[str, Any] = {}
        while node.after:
            values = await self._results(node.after, await self._start_all(node.after))
            if len(values) == len(node.after) or node.if_failed == "run":
                break
            if node.if_failed == "cancel":
                return None
            await self._ctx.wait_signal(f"resume {node.name}")
            self._forget(node)
        if node.takes:
            args |= {name: filled(part, dict.fromkeys(node.after) | values) for name, part in node.takes.items()}
            # Recorded: a job before it that an operator repeats may have another result.
            args = await self._ctx.side_effect("arguments", lambda: args).key(node.name)
        return await self._ctx.spawn(_ChildJob(job_from_json(node.job, args))).key(node.name)

    async def _results(self, names: Sequence[str], children: Sequence[Child[Any] | None]) -> dict[str, Any]:
        """Wait for children to end. Return the results of those that completed, by the names of their nodes."""
        started = [(name, child) for name, child in zip(names, children, strict=True) if child is not None]
        if not started:
            return {}
        values = await self._ctx.gather(*(child for _, child in started)).keep_going()
        ended = {name: value for (name, _), value in zip(started, values, strict=True)}
        self._failures |= {name: value for name, value in ended.items() if isinstance(value, ChildFailed)}
        completed = {name: value for name, value in ended.items() if not isinstance(value, ChildFailed)}
        for name in completed:
            self._failures.pop(name, None)
        return completed

    def _forget(self, node: _Node) -> None:
        """Let the nodes before this one start after all, if they did not run."""
        for name in node.after:
            child = self._children.get(name)
            if child is not None and child.done() and child.result() is None:
                del self._children[name]
                self._forget(self.nodes[name])
