"""Spawns children, and waits for them."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from awa_py.errors import ChildFailed, InvalidStep
from awa_py.model.children import Child, Join, Spawn, with_parent
from awa_py.model.durable import DurableRun
from awa_py.store.checkpoints import AwaitedChildren, EndedChild
from awa_py.worker.durable.memory import Memory
from awa_py.worker.durable.recorder import ChildrenRequest
from awa_py.worker.durable.spawner import SpawnRequest
from awa_py.worker.durable.values import digest_of, load_result, result_converter
from awa_py.worker.durable.waits import Wait, Waits

MISSING = "it was deleted before its parent asked for its result"


class Children:
    """The children of one attempt's job."""

    def __init__(self, run: DurableRun, memory: Memory, waits: Waits) -> None:
        self._run = run
        self._memory = memory
        self._waits = waits

    async def spawn(self, call: Spawn[Any], caller: "asyncio.Task[Any]") -> Any:
        """Spawn children unless that has happened. Return the child, or the results of all if the call joins them."""
        parent_id = self._memory.holder.job_id
        digest = digest_of(tuple((job.kind, job.args_json) for job in call.jobs), {})
        record = self._memory.recall(call.name, "spawn", digest)
        if record is None:
            key = f"children of {parent_id}: {call.name}"
            jobs = with_parent(call.jobs, parent_id, key, call.limit)
            new = self._memory.new(call.name, "spawn", digest=digest)
            text = await self._memory.request(SpawnRequest(new, jobs))
            self._memory.add(call.name, "spawn", digest=digest, result=text)
        else:
            text = record.result
        ranges = [(first, last) for first, last in json.loads(text or "[]")]
        if not call.joins:
            return Child(self._run, ranges[0][0], parent_id, call.function)
        ended = await self._wait(AwaitedChildren(ranges, call.fail_fast), caller)
        converter = result_converter(call.function)
        by_id = {child.id: child for child in ended}
        if call.fail_fast:
            _raise_first_failure(ended)
        ids = [number for first, last in ranges for number in range(first, last + 1)]
        kinds = [job.kind for job in call.jobs]
        return [
            self._value(number, kind, by_id.get(number), converter, fail_fast=call.fail_fast)
            for number, kind in zip(ids, kinds, strict=True)
        ]

    async def join(self, call: Join[Any], caller: "asyncio.Task[Any]") -> Any:
        """Return the results of children."""
        ended = await self._wait(self.awaited(call), caller)
        return self.results(call, ended)

    def awaited(self, call: Join[Any]) -> AwaitedChildren:
        """Return what a join waits for, or raise InvalidStep if it waits for jobs that are no children of this one."""
        for child in call.children:
            if child.parent_id != self._memory.holder.job_id:
                raise InvalidStep(
                    f"job {child.id} is a child of job {child.parent_id}: only its parent can wait for it"
                )
        return AwaitedChildren([(child.id, child.id) for child in call.children], call.fail_fast)

    def results(self, call: Join[Any], ended: Sequence[EndedChild]) -> Any:
        """Return the results of a join whose children have ended."""
        if call.fail_fast:
            _raise_first_failure(ended)
        by_id = {child.id: child for child in ended}
        results = [
            self._value(
                child.id, "child", by_id.get(child.id), result_converter(child.function), fail_fast=call.fail_fast
            )
            for child in call.children
        ]
        return results[0] if call.is_single else results

    def _value(self, child_id: int, kind: str, child: EndedChild | None, converter: Any, *, fail_fast: bool) -> Any:
        if child is not None and child.completed:
            return load_result(f"child {child_id}", child.result, converter)
        failure = ChildFailed(child_id, kind, MISSING) if child is None else _failure(child)
        if fail_fast:
            raise failure
        return failure

    async def look(self, awaited: AwaitedChildren) -> list[EndedChild] | None:
        """Return the children that have ended, or None if the job has to wait."""
        ended: list[EndedChild] | None = await self._memory.request(ChildrenRequest(self._memory.holder, awaited))
        return ended

    async def _wait(self, awaited: AwaitedChildren, caller: "asyncio.Task[Any]") -> Sequence[EndedChild]:
        if not awaited.ids:
            return []
        while (ended := await self.look(awaited)) is None:
            await self._waits.wait(Wait(caller, children=(awaited,)))
        return ended


def _raise_first_failure(ended: Sequence[EndedChild]) -> None:
    for child in ended:
        if not child.completed:
            raise _failure(child)


def _failure(child: EndedChild) -> ChildFailed:
    return ChildFailed(child.id, child.kind, child.error or "it has no error")
