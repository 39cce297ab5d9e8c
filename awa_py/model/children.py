"""Children of a durable job: spawned once, all or none; awaited without a slot."""

from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any, ParamSpec, Protocol, Self, TypeVar, cast

from awa_py.errors import ChildFailed, InvalidStep
from awa_py.model.durable import DurableCall, DurableRun
from awa_py.model.job import MAX_CONCURRENCY, Job, JobSpec, NewJob

P = ParamSpec("P")
T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)
MAX_CHILDREN = 100_000  # of one call


class Spawnable(Protocol[P, R_co]):
    """What `spawn` and `map` take: a function that `@app.job` made a job of."""

    @property
    def kind(self) -> str: ...
    @property
    def __wrapped__(self) -> Callable[..., Any]: ...
    def new(self, *args: P.args, **kwargs: P.kwargs) -> NewJob: ...
    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Job[R_co]]: ...


class Spawn(DurableCall[T]):
    """New children. Awaiting it returns them, or their results if `joins`."""

    __slots__ = ("fail_fast", "function", "jobs", "joins", "limit")

    def __init__(
        self, run: DurableRun, name: str, jobs: Sequence[NewJob], function: Callable[..., Any], *, joins: bool
    ) -> None:
        if len(jobs) > MAX_CHILDREN:
            raise InvalidStep(f'"{name}": {len(jobs)} children in one call, the limit is {MAX_CHILDREN}: use several')
        if any(job.unique is not None for job in jobs):
            raise InvalidStep(f'"{name}": a child has no unique key: the job that holds the key would be no child')
        super().__init__(run, name)
        self.jobs = jobs
        self.function = function
        self.joins = joins
        self.fail_fast = True
        self.limit: int | None = None

    def key(self, key: object) -> Self:
        """Name this call by a key, if the order of the calls may change."""
        self._rename(key)
        return self


class Map(Spawn[list[T]]):
    """Children of one kind, and their results in order."""

    __slots__ = ()

    def at_once(self, limit: int) -> "Map[T]":
        """Run at most this many of them at a time."""
        if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= MAX_CONCURRENCY:
            raise InvalidStep(f'"{self.name}": at_once takes a number from 1 to {MAX_CONCURRENCY}, not {limit!r}')
        if any(job.concurrency_key is not None for job in self.jobs):
            raise InvalidStep(f'"{self.name}": its children have a concurrency key of their own')
        self.limit = limit
        return self

    def keep_going(self) -> "Map[T | ChildFailed]":
        """Wait for all of them, and return ChildFailed in the place of the result of those that failed."""
        self.fail_fast = False
        return cast("Map[T | ChildFailed]", self)


class Join(DurableCall[T]):
    """The results of children, when all have ended."""

    __slots__ = ("children", "fail_fast", "is_single")
    is_wait = True

    def __init__(self, run: DurableRun, children: Sequence["Child[Any]"], *, is_single: bool = False) -> None:
        self._run = run  # no name: nothing is recorded, since the children keep their results
        self.base_name = self.name = "join"
        self.children = children
        self.is_single = is_single
        self.fail_fast = True

    def keep_going(self) -> "Join[Any]":
        """Wait for all of them, and return ChildFailed in the place of the result of those that failed."""
        self.fail_fast = False
        return self


class Child(Join[T]):
    """A child of a durable job: `await` it for its result."""

    __slots__ = ("function", "id", "parent_id")

    def __init__(self, run: DurableRun, child_id: int, parent_id: int, function: Callable[..., Any]) -> None:
        super().__init__(run, [self], is_single=True)
        self.id = child_id
        self.parent_id = parent_id
        self.function = function

    def __repr__(self) -> str:
        return f"<awa child {self.id} of job {self.parent_id}>"


def with_parent(jobs: Iterable[NewJob], parent_id: int, key: str, limit: int | None) -> list[NewJob]:
    """Return the jobs as children. With a limit, they share a concurrency key."""
    specs: dict[int, JobSpec] = {}  # by the id of the original: jobs of one definition share it
    made = []
    for job in jobs:
        if id(job.spec) not in specs:
            spec = replace(job.spec, parent_id=parent_id)
            specs[id(job.spec)] = spec if limit is None else replace(spec, concurrency_limit=limit, ordered=False)
        made.append(
            NewJob.from_spec(specs[id(job.spec)], job.args_json, None, job.concurrency_key if limit is None else key)
        )
    return made
