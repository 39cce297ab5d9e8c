"""Rewind a durable job: forget a step and all that followed, and run the job again from there."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat

import asyncpg

from awa_py.errors import AwaError, InvalidStep, JobNotFound
from awa_py.model.job import Job, State
from awa_py.store import durable_jobs
from awa_py.store.bulk import MAX_TRIES
from awa_py.store.durable_jobs import RecordedCheckpoint
from awa_py.store.jobs import cancel_trees, get_jobs, list_unfinished_children
from awa_py.store.session import Session
from awa_py.text import describe

MAX_NAMES = 50  # in a message


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewind:
    """What a rewind did: the names of the forgotten checkpoints, and the cancelled children."""

    forgotten: Sequence[str]
    cancelled: Sequence[int]


async def rewind(session: Session, job_id: int, *, to: str, write_events: bool) -> Rewind:
    """Forget the step `to` and all later ones, cancel the children they spawned, and make the job available.

    All of that is one transaction. Raise JobNotFound; InvalidStep if there is no such step; AwaError if the job runs,
    or if another job holds its unique key.
    """
    for _ in repeat(None, MAX_TRIES):
        async with session.connection.transaction():
            job = (await get_jobs(session, [job_id])).get(job_id)
            if job is None:
                raise JobNotFound(f"there is no job {job_id}: the id is wrong, or the job was deleted")
            if job.state is State.RUNNING:
                raise AwaError(f"job {job_id} is running: wait until it has ended, or cancel it, and then rewind it")
            done = await _try_rewind(session, job, to, write_events=write_events)
        if done is not None:
            return done
        if job.state.final and job.unique_key is not None:
            raise AwaError(f'job {job_id} was not rewound: another job holds its unique key "{job.unique_key}"')
    raise AwaError(f"job {job_id} was not rewound: it was changed by others at the same time")


async def _try_rewind(session: Session, job: Job, to: str, *, write_events: bool) -> Rewind | None:
    """Rewind a job as it was read. Return None if it has changed, or if another job holds its unique key."""
    checkpoints = await durable_jobs.list_checkpoints(session, job.id)
    number = _number_of(checkpoints, job.id, to)
    try:
        done = await session.fetchrow("rewind_job", job.id, job.lease, number, f'to the step "{to}"', write_events)
    except (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError) as error:
        raise AwaError(f"the checkpoints of job {job.id} cannot be restored: {describe(error)}") from error
    if done is None:
        return None
    forgotten = [each for each in checkpoints if each.number is not None and each.number >= number]
    cancelled = await _cancel_children(session, job.id, forgotten)
    return Rewind(forgotten=[each.name for each in forgotten], cancelled=cancelled)


def _number_of(checkpoints: Sequence[RecordedCheckpoint], job_id: int, name: str) -> int:
    """Return the number of a step, or raise InvalidStep with the names that there are."""
    for each in checkpoints:
        if each.name == name and each.number is not None:
            return each.number
    names = [f'"{each.name}"' for each in checkpoints]
    if not names:
        raise InvalidStep(f"job {job_id} has no steps to rewind to")
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    raise InvalidStep(f'job {job_id} has no step "{name}". Its steps are {", ".join(names[:MAX_NAMES])}{more}')


async def _cancel_children(session: Session, job_id: int, forgotten: Sequence[RecordedCheckpoint]) -> list[int]:
    """Cancel the unfinished children that forgotten checkpoints spawned. Return their ids."""
    ranges = [each for checkpoint in forgotten for each in checkpoint.children]
    unfinished = await list_unfinished_children(session, [job_id])
    spawned = [child for child in unfinished if any(first <= child <= last for first, last in ranges)]
    return sorted(await cancel_trees(session, spawned)) if spawned else []
