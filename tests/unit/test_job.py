"""New jobs: validation, copies and JSON."""

import copy
import json
import pickle
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from awa_py import App
from awa_py.errors import InvalidJob
from awa_py.model.job import FINAL, UNFINISHED, JobSpec, NewJob, State, UniqueKey
from awa_py.model.names import check_kind, check_queue

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def test_new_job_has_the_defaults() -> None:
    job = NewJob(kind="work")
    assert (job.priority, job.max_attempts, job.args_json, job.concurrency_key) == (2, 25, "{}", None)
    assert (job.queue, job.spec.default_queue) == (None, "default")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": ""}, "a kind's name cannot be empty"),
        ({"kind": None}, "kind None: a kind's name is a string"),
        ({"kind": "x" * 201}, f'kind "{"x" * 40}…": a kind\'s name has at most 200 characters'),
        ({"kind": "a\tb"}, r"kind 'a\tb': a kind's name cannot contain control characters"),
        ({"queue": "gh,slack"}, 'queue "gh,slack": a queue\'s name cannot contain a comma'),
        ({"queue": 7}, "queue 7: a queue's name is a string"),
        ({"priority": 0}, "work: priority is 1 (first) to 4, not 0"),
        ({"priority": True}, "work: priority is 1 (first) to 4, not True"),
        ({"priority": 2.0}, "work: priority is 1 (first) to 4, not 2.0"),
        ({"priority": "1"}, "work: priority is 1 (first) to 4, not '1'"),
        ({"max_attempts": 0}, "work: max_attempts is 1 to 32767, not 0"),
        ({"max_attempts": 32_768}, "work: max_attempts is 1 to 32767, not 32768"),
        ({"max_attempts": True}, "work: max_attempts is 1 to 32767, not True"),
        ({"max_attempts": None}, "work: max_attempts is 1 to 32767, not None"),
        ({"run_at": NOON, "delay": timedelta(1)}, "work: give either run_at or delay, not both"),
        ({"run_at": NOON.replace(tzinfo=None)}, "work: run_at has no timezone"),
        ({"deadline": NOON.replace(tzinfo=None)}, "work: deadline has no timezone"),
        ({"timeout": timedelta(0)}, "work: timeout must be longer than 0"),
        ({"tags": ["ok", ""]}, "work: a tag is a string"),
        ({"tags": ["x" * 201]}, "a tag is a string of 1 to 200 characters without control"),
    ],
)
def test_invalid_job_is_rejected_with_the_reason(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidJob) as error:
        NewJob(**{"kind": "work", **fields})
    assert message in str(error.value)


def test_new_job_is_immutable_and_can_be_copied() -> None:
    job = NewJob(kind="work", args_json='{"n":1}', queue="mail", unique=UniqueKey(key="k"))
    for copied in (copy.deepcopy(job), pickle.loads(pickle.dumps(job))):
        assert copied == job
        assert type(copied) is NewJob
    with pytest.raises(AttributeError):
        job.args_json = "{}"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        job.spec.queue = "other"  # type: ignore[misc]


def test_jobs_of_one_definition_share_their_spec() -> None:
    app = App()

    @app.job(queue="mail", delay="10m", metadata={"a": [1]})
    async def send(to: str) -> None: ...

    first, second = send.new(to="a"), send.new("b")
    assert first.spec is second.spec
    assert (first.args_json, second.args_json) == ('{"to":"a"}', '{"to":"b"}')
    assert send.options(priority=1).new(to="a").spec.priority == 1
    assert first.spec == JobSpec(kind="send", queue="mail", delay=timedelta(minutes=10), metadata={"a": [1]})
    with pytest.raises(InvalidJob, match="send: priority is 1"):
        send.options(priority=9).new(to="a")


def test_spec_resolves_when_a_job_is_due() -> None:
    assert JobSpec(kind="work").is_due_immediately
    assert JobSpec(kind="work", delay=timedelta(0)).is_due_immediately
    assert not JobSpec(kind="work", delay=timedelta(seconds=1)).is_due_immediately
    assert not JobSpec(kind="work", run_at=NOON).is_due_immediately
    assert JobSpec(kind="work").resolve_run_at(NOON) == NOON
    assert JobSpec(kind="work", delay=timedelta(hours=1)).resolve_run_at(NOON) == NOON + timedelta(hours=1)
    assert JobSpec(kind="work", run_at=NOON).resolve_run_at(NOON - timedelta(hours=1)) == NOON


@pytest.mark.parametrize("key", ["", "a\x00b", "x" * 1001])
def test_unique_key_has_a_maximum_length(key: str) -> None:
    with pytest.raises(InvalidJob, match="a unique key has 1 to 1000 characters"):
        UniqueKey(key=key)


def test_unique_key_needs_at_least_one_state() -> None:
    with pytest.raises(InvalidJob, match="needs at least one state"):
        UniqueKey(key="k", states=())


def test_names_of_maximum_length_are_valid() -> None:
    assert check_kind("x" * 200) == "x" * 200
    assert check_kind("with, a comma and ünï") == "with, a comma and ünï"
    assert check_queue("a b:c") == "a b:c"


def test_json_contains_only_what_was_set() -> None:
    assert json.loads(NewJob(kind="work").to_json()) == {
        "kind": "work",
        "priority": 2,
        "max_attempts": 25,
        "args": {},
    }


def test_json_contains_everything_that_was_set() -> None:
    job = NewJob(
        kind='a "kind"',
        args_json='{"n":[1,{}]}',
        delay=timedelta(milliseconds=1500),
        timeout=timedelta(seconds=90),
        deadline=NOON,
        tags=("a",),
        metadata={"m": None},
        parent_id=5,
        unique=UniqueKey(key="k", period=timedelta(hours=1), states=(State.RUNNING,)),
    )
    assert json.loads(job.to_json()) == {
        "kind": 'a "kind"',
        "priority": 2,
        "max_attempts": 25,
        "delay": "1.500000 seconds",
        "timeout": "90.000000 seconds",
        "deadline": "2030-01-01T12:00:00+00:00",
        "tags": ["a"],
        "metadata": {"m": None},
        "parent_id": 5,
        "unique_key": "k",
        "unique_for": "3600.000000 seconds",
        "unique_states": ["running"],
        "args": {"n": [1, {}]},
    }


def test_every_state_is_final_or_unfinished() -> None:
    assert {state for state in State if state.final} == FINAL == {State.COMPLETED, State.FAILED, State.CANCELLED}
    assert FINAL.isdisjoint(UNFINISHED)
    assert {*FINAL, *UNFINISHED} == set(State)
