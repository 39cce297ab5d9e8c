"""Flows: jobs that depend on each other, and take each other's results.

A flow is enqueued as one job, whose handler (`awa_py/builtin/flow.py`) runs the others as its children.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol, get_args

from awa_py.arguments.signature import Signature
from awa_py.errors import InvalidJob
from awa_py.model.job import NewJob
from awa_py.model.names import MAX_NODE_CHARACTERS, check_flow_node

MAX_NODES = 1000
IfFailed = Literal["cancel", "run", "hold"]
# Results of nodes: that of the named one, or a list or a mapping of such.
Results = str | list["Results"] | dict[str, "Results"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialJob:
    """A job of a flow that has only some of its arguments: the others are results of the jobs before it."""

    job: NewJob
    signature: Signature = field(repr=False)


class Definition(Protocol):
    """A function that `@app.job` made a job of."""

    def partial(self, **arguments: Any) -> PartialJob: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowNode:
    """A job of a flow, what it depends on, and which of its arguments are results of other nodes."""

    name: str
    job: NewJob
    signature: Signature | None
    after: Results
    takes: dict[str, Results] | None
    if_failed: IfFailed

    def dependencies(self) -> list[str]:
        """Return the names of the nodes that it depends on."""
        return list(dict.fromkeys([*names_in(self.after), *names_in(self.takes or {})]))

    def to_json(self, takes: Mapping[str, Results]) -> dict[str, Any]:
        return {
            "name": self.name,
            "job": json.loads(self.job.to_json()) | {"as_given": self.job.spec.is_complete},
            "after": self.dependencies(),
            "takes": takes,
            "if_failed": self.if_failed,
        }


class Flow:
    """Jobs that depend on each other: add them, and start the flow with `app.start(flow)`."""

    def __init__(self) -> None:
        self._nodes: dict[str, FlowNode] = {}
        self._results: Results | None = None  # None: of all nodes that no other one depends on

    def add(
        self,
        job: "NewJob | PartialJob | Definition",
        *,
        name: str | None = None,
        after: str | Iterable[str] = (),
        takes: Mapping[str, str | Iterable[str]] | None = None,
        if_failed: IfFailed = "cancel",
    ) -> str:
        """Add a job that runs when the jobs named in `after` have ended. Return its name, by default its kind.

        `takes` maps arguments to the names of the jobs whose results they are. Without it, the first argument that a
        definition or a partial job lacks is the result of `after`: a list if `after` is one.

        If a job that it depends on fails, it does not run, and counts as failed itself (`cancel`); it runs, and takes
        None instead of a result (`run`); or it waits until an operator has repeated that job (`hold`).
        """
        taken = None if takes is None else {argument: _listed(names) for argument, names in takes.items()}
        return self._add(job, name, _listed(after), taken, if_failed)

    def then(self, job: "NewJob | PartialJob | Definition | Flow", *, if_failed: IfFailed = "cancel") -> "Flow":
        """Return a flow that goes on with this job, or flow, when this one has ended."""
        return chain(self, job, if_failed=if_failed)

    def to_args(self) -> dict[str, Any]:
        """Return the arguments of the flow's job, or raise InvalidJob if the flow cannot run."""
        if not self._nodes:
            raise InvalidJob("the flow has no jobs: add one")
        if len(self._nodes) > MAX_NODES:
            raise InvalidJob(f"{len(self._nodes)} jobs in one flow, the limit is {MAX_NODES}: use ctx.map for many")
        for node in self._nodes.values():
            for name in node.dependencies():
                if name not in self._nodes:
                    raise InvalidJob(f'flow: "{node.name}" depends on "{name}", and no job of the flow has that name')
        ordered = self._in_order()
        return {"nodes": [node.to_json(_takes_of(node)) for node in ordered], "results": self._all_results()}

    def _add(
        self,
        job: "NewJob | PartialJob | Definition",
        name: str | None,
        after: Results,
        takes: dict[str, Results] | None,
        if_failed: IfFailed,
    ) -> str:
        part = job if isinstance(job, NewJob | PartialJob) else _partial(job)
        new = part.job if isinstance(part, PartialJob) else part
        if new.unique is not None:
            raise InvalidJob(
                f"{new.kind}: a job of a flow has no unique key: the job that holds it would be no part of it"
            )
        if if_failed not in get_args(IfFailed):
            raise InvalidJob(f"{new.kind}: if_failed is one of {', '.join(get_args(IfFailed))}, not {if_failed!r}")
        if name is not None and name in self._nodes:
            raise InvalidJob(f'flow: two jobs have the name "{name}": give one of them another')
        unique = self._free_name(new.kind[:MAX_NODE_CHARACTERS]) if name is None else check_flow_node(name)
        signature = part.signature if isinstance(part, PartialJob) else None
        self._nodes[unique] = FlowNode(
            name=unique, job=new, signature=signature, after=after, takes=takes, if_failed=if_failed
        )
        return unique

    def _append(self, part: "NewJob | PartialJob | Definition | Flow", after: Results, if_failed: IfFailed) -> Results:
        """Add a job or another flow after these nodes. Return what it results in."""
        if not isinstance(part, Flow):
            return self._add(part, None, after, None, if_failed)
        renamed: dict[str, str] = {}
        for node in part._nodes.values():
            renamed[node.name] = self._free_name(node.name)
            self._nodes[renamed[node.name]] = node  # holds the name
        for node in part._nodes.values():
            first = not node.dependencies()
            self._nodes[renamed[node.name]] = FlowNode(
                name=renamed[node.name],
                job=node.job,
                signature=node.signature,
                after=after if first else _renamed(node.after, renamed),
                takes=None if node.takes is None else {k: _renamed(v, renamed) for k, v in node.takes.items()},
                if_failed=if_failed if first else node.if_failed,
            )
        return _renamed(part._all_results(), renamed)

    def _free_name(self, kind: str) -> str:
        name, number = kind, 1
        while name in self._nodes:
            number += 1
            name = f"{kind}#{number}"
        return name

    def _all_results(self) -> Results:
        if self._results is not None:
            return self._results
        needed = {name for node in self._nodes.values() for name in node.dependencies()}
        return {name: name for name in self._nodes if name not in needed}

    def _in_order(self) -> list[FlowNode]:
        """Return the nodes, each after those that it depends on, or raise InvalidJob if there is a cycle."""
        ordered: dict[str, FlowNode] = {}
        left = dict(self._nodes)
        while left:
            free = [node for node in left.values() if all(name in ordered for name in node.dependencies())]
            if not free:
                raise InvalidJob(f"flow: these jobs depend on each other in a circle: {' ← '.join(_circle(left))}")
            for node in free:
                ordered[node.name] = left.pop(node.name)
        return list(ordered.values())


def chain(*parts: "NewJob | PartialJob | Definition | Flow", if_failed: IfFailed = "cancel") -> Flow:
    """Return a flow that runs jobs one after another. Its result is that of the last one."""
    flow = Flow()
    results: Results = []
    for part in parts:
        results = flow._append(part, results, if_failed)
    flow._results = results
    return flow


def group(*parts: "NewJob | PartialJob | Definition | Flow") -> Flow:
    """Return a flow that runs jobs side by side. Its result is the list of their results."""
    flow = Flow()
    flow._results = [flow._append(part, [], "cancel") for part in parts]
    return flow


def names_in(results: Results) -> Iterator[str]:
    """Yield the names of the nodes whose results these are."""
    if isinstance(results, str):
        yield results
    else:
        for part in results.values() if isinstance(results, dict) else results:
            yield from names_in(part)


def filled(results: Results, values: Mapping[str, Any]) -> Any:
    """Return the results, with the value of each node."""
    if isinstance(results, str):
        return values[results]
    if isinstance(results, dict):
        return {name: filled(part, values) for name, part in results.items()}
    return [filled(part, values) for part in results]


def job_from_json(values: Mapping[str, Any], args: Mapping[str, Any]) -> NewJob:
    """Return the job that `NewJob.to_json` wrote, with these arguments."""
    given = {
        name: value for name, value in values.items() if name not in ("kind", "args", "as_given", "concurrency_key")
    }
    for name in {"delay", "timeout"} & given.keys():
        given[name] = timedelta(seconds=float(given[name].removesuffix(" seconds")))
    for name in {"run_at", "deadline"} & given.keys():
        given[name] = datetime.fromisoformat(given[name])
    return NewJob(
        kind=values["kind"],
        args_json=json.dumps(args),
        concurrency_key=values.get("concurrency_key"),
        given=None if values["as_given"] else frozenset(given),
        **given,
    )


def _partial(job: object) -> PartialJob:
    make = getattr(job, "partial", None)
    if make is None:
        raise InvalidJob(f"a flow has jobs, e.g. send.new(5) or send, not {job!r}")
    made: PartialJob = make()
    return made


def _takes_of(node: FlowNode) -> dict[str, Results]:
    """Return which arguments are results of other nodes, or raise InvalidJob if an argument is missing or unknown."""
    takes = node.takes
    if node.signature is None:
        return takes or {}
    given = json.loads(node.job.args_json)
    missing = [name for name in node.signature.required_names if name not in given]
    if takes is None:
        takes = {missing[0]: node.after} if missing and node.dependencies() else {}
    for name in takes:
        if not node.signature.accepts(name):
            raise InvalidJob(f'flow: {node.job.kind} has no argument "{name}" that could take a result')
    for name in missing:
        if name not in takes:
            where = "give it with new() or partial(), or take it from another job"
            raise InvalidJob(f'flow: {node.job.kind}: missing argument "{name}": {where}')
    return takes


def _listed(names: str | Iterable[str]) -> Results:
    return names if isinstance(names, str) else list(names)


def _renamed(results: Results, names: Mapping[str, str]) -> Results:
    renamed: Results = filled(results, names)
    return renamed


def _circle(left: Mapping[str, FlowNode]) -> Sequence[str]:
    """Return names of nodes each of which depends on the next, and the last one on the first."""
    path: list[str] = []
    name = next(iter(left))
    while name not in path:
        path.append(name)
        name = next(each for each in left[name].dependencies() if each in left)
    return [*path[path.index(name) :], name]
