"""Jobs with their children: the first of a job, or the whole tree."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from awa_py.connections import Record
from awa_py.model.job import Job, State
from awa_py.store.jobs import get_jobs
from awa_py.store.rows import job_from
from awa_py.store.session import Session

MAX_TREE_JOBS = 1_000
MAX_ANCESTORS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildJobs:
    """The first children of a job, and the number of all in each state."""

    first: Sequence[Job]
    counts: Mapping[State, int]

    @property
    def total(self) -> int:
        return sum(self.counts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTree:
    """A tree of jobs, with the children of each by the parent's id.

    `hidden` has the number of children that are not in the tree. If it is cut, there may be more of them.
    """

    root: Job
    children: Mapping[int, Sequence[Job]]
    hidden: Mapping[int, int]
    is_cut: bool


async def list_child_jobs(session: Session, job_id: int, *, limit: int) -> ChildJobs:
    """Return the first children of a job, and the number of all in each state."""
    first = [job_from(row) for row in await _list_level(session, [job_id], limit)]
    counts = {State(row["state"]): row["jobs"] for row in await session.fetch("count_children", job_id)}
    return ChildJobs(first=first, counts={state: counts[state] for state in State if state in counts})


async def read_tree(session: Session, job_id: int, *, limit: int = MAX_TREE_JOBS) -> JobTree | None:
    """Return the tree that a job belongs to, from its root. One statement reads each level."""
    root = await _find_root(session, job_id)
    if root is None:
        return None
    children: dict[int, list[Job]] = defaultdict(list)
    siblings: dict[int, int] = {}
    seen = {root.id}  # a row that was edited may be its own ancestor
    level = [root.id]
    is_cut = False
    while level and not is_cut:
        left = limit - len(seen)
        rows = await _list_level(session, level, left + 1)
        is_cut = len(rows) > left
        siblings.update({row["parent_id"]: row["siblings"] for row in rows})
        new = [job_from(row) for row in rows[:left] if row["id"] not in seen]
        for job in new:
            assert job.parent_id is not None
            children[job.parent_id].append(job)
        level = [job.id for job in new]
        seen.update(level)
    hidden = {parent: number - len(children[parent]) for parent, number in siblings.items()} if is_cut else {}
    return JobTree(
        root=root,
        children=dict(children),
        hidden={parent: number for parent, number in hidden.items() if number},
        is_cut=is_cut,
    )


async def _list_level(session: Session, parents: Sequence[int], limit: int) -> list[Record]:
    return await session.fetch("list_tree_level", parents, limit)


async def _find_root(session: Session, job_id: int) -> Job | None:
    """Return the oldest ancestor that still exists."""
    found = await get_jobs(session, [job_id])
    job = root = found.get(job_id)
    seen = {job_id}
    while job is not None:
        root, parent_id = job, job.parent_id
        if parent_id is None or parent_id in seen or len(seen) == MAX_ANCESTORS:
            break
        seen.add(parent_id)
        job = (await get_jobs(session, [parent_id])).get(parent_id)
    return root
