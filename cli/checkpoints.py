"""The part of `awa job show` about durable jobs: steps, what the job waits for, and children."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rich.text import Text

from awa_py.model.job import NO_TIMER, Job
from awa_py.observability.explain import wait_sentence
from awa_py.store import durable_jobs, job_trees
from awa_py.store.durable_jobs import JobWait, RecordedCheckpoint
from awa_py.store.job_trees import ChildJobs
from awa_py.store.session import Session
from awa_py.text import clean_text, escape

from .output import Row, approximate, compact_json, print_table, say, state_text, timestamp

MAX_CHILDREN = 20
MAX_CHARACTERS = 500  # of a result or an error


@dataclass(frozen=True, slots=True, kw_only=True)
class DurableState:
    """What a job remembers and waits for, and its children. Of a job that is not durable, all of it is empty."""

    checkpoints: Sequence[RecordedCheckpoint]
    wait: JobWait | None
    children: ChildJobs


async def read_durable_state(session: Session, job_id: int) -> DurableState:
    return DurableState(
        checkpoints=await durable_jobs.list_checkpoints(session, job_id),
        wait=await durable_jobs.get_wait(session, job_id),
        children=await job_trees.list_child_jobs(session, job_id, limit=MAX_CHILDREN),
    )


def durable_object(state: DurableState) -> dict[str, Any]:
    """Return what `--json` prints of it."""
    return {
        "checkpoints": state.checkpoints,
        "waits": state.wait,
        "children": {
            "counts": state.children.counts,
            "first": [child_object(child) for child in state.children.first],
        },
    }


def child_object(job: Job) -> dict[str, Any]:
    names = ("id", "parent_id", "kind", "queue", "state", "created_at", "attempted_at", "finalized_at")
    return {name: getattr(job, name) for name in names}


def print_durable_state(job_id: int, state: DurableState, now: datetime) -> None:
    """Print the steps in the order of the calls, with children below the step that spawned them."""
    rows = list(_rows(state, now))
    if rows:
        say("")
        print_table(rows, empty="")
    if state.children.total:
        states = ", ".join(f"{jobs:,} {each}" for each, jobs in state.children.counts.items())
        noun = "child" if state.children.total == 1 else "children"
        say("")
        say(f"{state.children.total:,} {noun}: {states}. All of them: `awa job tree {job_id}`.")
    if state.wait is not None:
        say("")
        say(f"It {wait_sentence(state.wait, now)}.")


def _rows(state: DurableState, now: datetime) -> Iterator[Row]:
    left = {child.id: child for child in state.children.first}
    for checkpoint in state.checkpoints:
        spawned = [number for number in left if any(first <= number <= last for first, last in checkpoint.children)]
        yield {
            "step": Text(_cut(checkpoint.name)),
            "type": Text(_cut(checkpoint.type)),
            "recorded (UTC)": Text(_clock(checkpoint.recorded_at)),
            "took": Text("" if checkpoint.took_s is None else approximate(checkpoint.took_s), justify="right"),
            "tries": checkpoint.tries,
            "result": _outcome(checkpoint, now),
        }
        yield from _child_rows([left.pop(number) for number in spawned], now)
    yield from _child_rows(list(left.values()), now, "", "")  # no step, or a forgotten one, has spawned them


def _child_rows(children: Sequence[Job], now: datetime, branch: str = "├ ", last_branch: str = "└ ") -> Iterator[Row]:
    for n, child in enumerate(children, start=1):
        yield {
            "step": Text(f"{last_branch if n == len(children) else branch}job {child.id}"),
            "type": Text(_cut(child.kind)),
            "recorded (UTC)": Text(_clock(child.created_at)),
            "took": Text(lifetime(child), justify="right"),
            "tries": child.attempt,
            "result": child_state(child, now),
        }


def lifetime(job: Job) -> str:
    """Return the time from a job's enqueue to its end."""
    return "" if job.finalized_at is None else approximate((job.finalized_at - job.created_at).total_seconds())


def child_state(job: Job, now: datetime) -> Text:
    """Return a job's state with its last error, or when it is due."""
    text = state_text(job.state)
    if (job.errors and not job.finalized_at) or job.state in ("failed", "cancelled"):
        error = str(job.errors[-1].get("error", "")) if job.errors else ""
        return text.append(f" {_cut(error.partition(chr(10))[0])}", style="default")
    if job.run_at > now and job.run_at != NO_TIMER:
        return text.append(f" until {timestamp(job.run_at, now)}", style="default")
    return text


def _outcome(checkpoint: RecordedCheckpoint, now: datetime) -> str:
    """Return the result of a checkpoint, its error, or what it waits for."""
    if checkpoint.error is not None:
        return _cut(checkpoint.error)
    if checkpoint.type == "spawn":
        number = sum(last - first + 1 for first, last in checkpoint.children)
        return "1 child" if number == 1 else f"{number:,} children"
    if checkpoint.type == "timer":
        return f"until {timestamp(checkpoint.until, now)}"
    if checkpoint.type == "signal":
        if checkpoint.is_open:
            return "waits" if checkpoint.until is None else f"waits until {timestamp(checkpoint.until, now)}"
        if checkpoint.result is None:
            return "no signal: its timeout passed"
        return _result(checkpoint)
    return _result(checkpoint)


def _result(checkpoint: RecordedCheckpoint) -> str:
    result = checkpoint.result
    if checkpoint.is_cut:
        return _cut(f"{result}…")
    is_signal = checkpoint.type == "signal" and isinstance(result, dict) and "data" in result
    return _cut(compact_json(result["data"] if is_signal else result))


def _clock(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment.astimezone(UTC):%m-%d %H:%M:%S.%f}"[:-3]


def _cut(text: str) -> str:
    return escape(clean_text(text, MAX_CHARACTERS)).replace("\n", "\\n").replace("\t", "\\t")
