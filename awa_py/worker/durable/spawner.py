"""Enqueues the children of several jobs in one transaction, together with the checkpoints that tell their ids."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple
from uuid import UUID

from awa_py.enqueue.enqueuer import Enqueuer
from awa_py.errors import InvalidJob, InvalidStep
from awa_py.model.job import NewJob
from awa_py.store import checkpoints
from awa_py.store.checkpoints import NewCheckpoint
from awa_py.store.session import Session

Answer = str | Exception  # the ids of the children as ranges, in JSON


class NotHeld(Exception):
    """Another worker has the job, or it is being cancelled: nothing was written."""


class SpawnRequest(NamedTuple):
    """Children to enqueue, and the checkpoint that tells their ids."""

    new: NewCheckpoint
    jobs: Sequence[NewJob]
    may_exist: bool = False  # the answer to an earlier try was lost


class _Refused(Exception):
    def __init__(self, parents: set[int]) -> None:
        self.parents = parents


class Spawner:
    """Spawns children for the jobs of one worker."""

    def __init__(self, worker_id: UUID) -> None:
        self._worker_id = worker_id
        self._enqueuer = Enqueuer()

    async def spawn(self, session: Session, requests: Sequence[SpawnRequest]) -> Sequence[Answer]:
        """Enqueue the children of each request, all or none."""
        answers: dict[int, Answer] = dict(await self._find_existing(session, requests))
        left = [n for n in range(len(requests)) if n not in answers]
        while left:
            try:
                async with session.connection.transaction():
                    spawned = await self._enqueue(session, [requests[n] for n in left])
            except _Refused as refused:
                answers |= {n: NotHeld() for n in left if requests[n].new.holder.job_id in refused.parents}
            except InvalidJob as error:
                if len(left) == 1:
                    answers[left[0]] = InvalidStep(str(error))
                else:  # one of them is refused: enqueue each alone
                    answers |= {n: (await self.spawn(session, [requests[n]]))[0] for n in left}
            else:
                answers |= dict(zip(left, spawned, strict=True))
            left = [n for n in left if n not in answers]
        return [answers[n] for n in range(len(requests))]

    async def _enqueue(self, session: Session, requests: Sequence[SpawnRequest]) -> list[str]:
        """Enqueue all children and record their ids, or raise _Refused if a parent may not spawn."""
        jobs = await self._enqueuer.enqueue_many(session, [job for each in requests for job in each.jobs])
        if taken := next((job for job in jobs if not job.is_new), None):  # the kind declares a unique key elsewhere
            raise InvalidJob(f"{taken.kind}: a child has no unique key, and job {taken.id} holds that of this one")
        enqueued = iter(jobs)
        ids = [json.dumps(_ranges([job.id for job in islice(enqueued, len(each.jobs))])) for each in requests]
        records = [replace(each.new, result=text) for each, text in zip(requests, ids, strict=True)]
        await checkpoints.record_checkpoints(session, self._worker_id, records)
        # Last, because heartbeats wait for this lock.
        holders = list({each.new.holder: None for each in requests})
        allowed = await checkpoints.lock_parents(session, self._worker_id, holders)
        if len(allowed) < len(holders):
            raise _Refused({holder.job_id for holder in holders} - allowed)
        return ids

    async def _find_existing(self, session: Session, requests: Sequence[SpawnRequest]) -> list[tuple[int, str]]:
        """Return what earlier tries have spawned."""
        repeated = [n for n, each in enumerate(requests) if each.may_exist]
        if not repeated:
            return []
        names = {n: (requests[n].new.holder.job_id, requests[n].new.name) for n in repeated}
        found = await checkpoints.get_results(session, list(names.values()))
        return [(n, found[name]) for n, name in names.items() if name in found]


def _ranges(ids: Sequence[int]) -> list[tuple[int, int]]:
    """Return ascending ids as ranges: [1, 2, 3, 7] → [(1, 3), (7, 7)]."""
    ranges: list[tuple[int, int]] = []
    for number in ids:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges
