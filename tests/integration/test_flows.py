"""Flows: chains, groups and graphs of jobs, run as the children of one job."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

import awa_py as awa
from awa_py import App, Flow, State, chain, group
from awa_py.errors import InvalidJob, JobFailed
from awa_py.model.flow import job_from_json
from awa_py.store.session import Session
from tests.support import drain, eventually, seconds, states, working

pytestmark = pytest.mark.integration


class Jobs:
    """The jobs of these tests, and what ran."""

    def __init__(self, app: App) -> None:
        self.ran: list[str] = []
        self.broken = {"bad"}

        @app.job
        async def add(a: int, b: int = 1) -> int:
            self.ran.append(f"add {a} {b}")
            return a + b

        @app.job
        async def total(numbers: list[int | None]) -> int:
            return sum(number or 0 for number in numbers)

        @app.job(max_attempts=1)
        async def fail(name: str) -> str:
            if name in self.broken:
                raise ValueError(f"{name} is broken")
            return name

        @app.job
        async def note(text: str | None, then: str = "") -> str:
            self.ran.append(f"note {text}")
            return f"{text}{then}"

        @app.job
        async def end() -> str:
            return "end"

        self.add, self.total, self.fail, self.note, self.end = add, total, fail, note, end


@pytest.fixture
def jobs(app: App) -> Jobs:
    return Jobs(app)


async def run(app: App, flow: Flow, **options: Any) -> awa.Job:
    async with app:
        job = await app.start(flow, **options)
        async with working(app, maintenance=True):
            final: awa.Job = await eventually(lambda: ended(app, job))
            return final


async def ended(app: App, job: awa.Job) -> awa.Job | None:
    now = await app.get(job)
    return now if now.finalized_at else None


async def is_waiting(app: App, job: awa.Job) -> bool:
    return (await app.get(job)).state is State.WAITING


class TestShapes:
    async def test_chain_passes_each_result_to_the_next_job(self, app: App, jobs: Jobs) -> None:
        job = await run(app, chain(jobs.add.new(1), jobs.add, jobs.add.partial(b=10)))
        assert (job.result, jobs.ran) == (13, ["add 1 1", "add 2 1", "add 3 10"])

    async def test_complete_job_of_a_chain_takes_no_result(self, app: App, jobs: Jobs) -> None:
        job = await run(app, chain(jobs.add.new(1), jobs.add.new(5), jobs.end))
        assert (job.result, jobs.ran) == ("end", ["add 1 1", "add 5 1"])

    async def test_group_returns_the_results_in_order(self, app: App, jobs: Jobs) -> None:
        job = await run(app, group(*(jobs.add.new(number) for number in range(30))))
        assert job.result == list(range(1, 31))

    async def test_callback_takes_the_results_of_its_group(self, app: App, jobs: Jobs) -> None:
        assert (await run(app, group(jobs.add.new(1), jobs.add.new(2)).then(jobs.total))).result == 5

    async def test_flows_can_be_nested(self, app: App, jobs: Jobs) -> None:
        inner = group(jobs.add, jobs.add.partial(b=2), chain(jobs.add, jobs.add))
        assert (await run(app, chain(jobs.add.new(0), inner, jobs.total))).result == 2 + 3 + 3
        both = group(group(jobs.end, jobs.end), jobs.end)
        assert (await run(app, both)).result == [["end", "end"], "end"]

    async def test_graph_passes_results_by_name(self, app: App, jobs: Jobs) -> None:
        flow = Flow()
        first = flow.add(jobs.add.new(1))
        left = flow.add(jobs.add, after=first)
        right = flow.add(jobs.add.partial(b=5), after=first, name="right")
        flow.add(jobs.add, takes={"a": left, "b": right}, name="sum")
        flow.add(jobs.total, takes={"numbers": [left, "right"]}, after="sum")
        flow.add(jobs.end, after=["right"])
        job = await run(app, flow)
        assert (first, left, right) == ("add", "add#2", "right")
        assert job.result == {"total": 3 + 7, "end": "end"}
        assert "add 3 7" in jobs.ran

    async def test_node_that_is_added_later_can_be_named_before(self, app: App, jobs: Jobs) -> None:
        flow = Flow()
        flow.add(jobs.note, after="number")
        flow.add(jobs.fail.new("7"), name="number")
        assert (await run(app, flow)).result == {"note": "7"}

    async def test_large_group_and_long_chain_end(self, app: App, jobs: Jobs) -> None:
        assert (await run(app, group(*[jobs.add.new(1)] * 300).then(jobs.total))).result == 600
        assert (await run(app, chain(jobs.add.new(0), *[jobs.add] * 24))).result == 25


class TestRun:
    async def test_jobs_of_a_flow_are_children_of_its_job(self, app: App, jobs: Jobs) -> None:
        async with app:
            job = await app.start(chain(jobs.add.options(queue="other", priority=1).new(1), jobs.end), tags=["t"])
            async with working(app, ["default", "other"], maintenance=True):
                assert await app.result(job, timeout="30s") == "end"
            children = await app.children(job)
            assert (job.kind, job.tags) == ("awa.flow", ["t"])
        assert [(child.kind, child.queue, child.priority) for child in children] == [
            ("add", "other", 1),
            ("end", "default", 2),
        ]

    async def test_one_slot_is_enough(self, app: App, jobs: Jobs) -> None:
        async with app:
            job = await app.start(group(jobs.add.new(1), jobs.add.new(2)).then(jobs.total))
            async with working(app, concurrency=1, maintenance=True):
                assert await app.result(job, timeout="30s") == 5

    async def test_waiting_flow_holds_no_slot_and_spawns_each_job_once(
        self, app: App, database_url: str, session: Session
    ) -> None:
        jobs = Jobs(app)
        producer = Jobs(other := App(database_url, settings=app.settings))

        @other.job
        async def elsewhere(a: int) -> int:
            return a

        async with app:
            job = await app.start(chain(producer.add.new(1), elsewhere, producer.add))
            await drain(app)
            assert (await app.get(job)).state is State.WAITING
            assert await states(session) == {"waiting": 1, "completed": 1, "available": 1}
            for _ in range(2):  # attempts that change nothing
                await session.connection.execute("UPDATE awa.scheduled SET run_at = now()")
                await drain(app)
            await drain(other)
            await drain(app)
            assert (await app.get(job)).result == 3
            assert [child.kind for child in await app.children(job)] == ["add", "elsewhere", "add"]
            assert jobs.ran + producer.ran == ["add 1 1", "add 2 1"]

    async def test_flow_is_enqueued_in_the_callers_transaction(self, app: App, jobs: Jobs, database_url: str) -> None:
        async with app:
            own = await asyncpg.connect(database_url)
            transaction = own.transaction()
            await transaction.start()
            job = await app.start(chain(jobs.end, jobs.end), connection=own)
            await transaction.rollback()
            await own.close()
            with pytest.raises(awa.JobNotFound):
                await app.get(job)

    async def test_cancelling_a_flow_cancels_its_jobs(self, app: App, jobs: Jobs) -> None:
        async with app:
            job = await app.start(group(jobs.end.options(delay="1h"), jobs.end.options(queue="nowhere")))
            await drain(app)
            assert await is_waiting(app, job)
            assert await app.cancel(job)
            assert {child.state for child in await app.children(job)} == {State.CANCELLED}
            assert (await app.get(job)).state is State.CANCELLED

    async def test_declared_concurrency_key_is_filled_with_results(self, app: App, jobs: Jobs) -> None:
        @app.job(concurrency_key="customer:{a}", concurrency_limit=3, timeout="9s")
        async def keyed(a: int) -> int:
            return a

        async with app:
            job = await app.start(chain(jobs.add.new(1), keyed))
            async with working(app, maintenance=True):
                assert await app.result(job, timeout="30s") == 2
            child = (await app.children(job))[-1]
        assert (child.concurrency_key, child.concurrency_limit, child.timeout) == ("customer:2", 3, seconds(9))

    async def test_repeated_job_does_not_change_what_another_has_taken(
        self, app: App, jobs: Jobs, session: Session
    ) -> None:
        async with app:
            job = await app.start(chain(jobs.fail.new("one"), jobs.note.options(delay="1h"), jobs.note))
            await drain(app)
            first, second = await app.children(job)
            await session.connection.execute("""UPDATE awa.completed SET result = '"two"' WHERE id = $1""", first.id)
            assert await app.retry(second)
            await drain(app)
            assert (await app.get(job)).result == "one"


class TestFailures:
    async def test_failed_job_cancels_what_depends_on_it(self, app: App, jobs: Jobs) -> None:
        flow = Flow()
        bad = flow.add(jobs.fail.new("bad"))
        note = flow.add(jobs.note, after=bad)
        flow.add(jobs.end, after=note)
        flow.add(jobs.add.new(1))
        job = await run(app, flow)
        async with app:
            assert [child.kind for child in await app.children(job)] == ["fail", "add"]
        assert job.state is State.FAILED
        error = job.errors[-1]["error"]
        assert re.fullmatch(r"fail: child \d+ \(fail\) failed: ValueError: bad is broken; not run: note, end", error)

    async def test_failed_job_is_ignored_on_request(self, app: App, jobs: Jobs) -> None:
        some = group(jobs.add.new(1), jobs.fail.new("bad"), jobs.add.new(2))
        assert (await run(app, some.then(jobs.total, if_failed="run"))).result == 5
        assert (
            await run(app, chain(jobs.fail.new("bad"), jobs.note.partial(then="!"), if_failed="run"))
        ).result == "None!"

    async def test_job_after_a_cancelled_one_can_run(self, app: App, jobs: Jobs) -> None:
        flow = Flow()
        bad = flow.add(jobs.fail.new("bad"))
        skipped = flow.add(jobs.note, after=bad)
        flow.add(jobs.note, after=skipped, if_failed="run", name="last")
        assert (await run(app, flow)).result == {"last": "None"}

    async def test_flow_fails_if_its_last_job_fails(self, app: App, jobs: Jobs) -> None:
        async with app:
            job = await app.start(chain(jobs.end, jobs.fail.new("bad")))
            async with working(app, maintenance=True):
                with pytest.raises(JobFailed, match="bad is broken"):
                    await app.result(job, timeout="30s")

    async def test_failed_job_holds_what_depends_on_it_on_request(self, app: App, jobs: Jobs) -> None:
        flow = Flow()
        bad = flow.add(jobs.fail.new("bad"))
        flow.add(jobs.note, after=bad, if_failed="hold", name="report")
        async with app:
            job = await app.start(flow)
            async with working(app, maintenance=True):
                await eventually(lambda: is_waiting(app, job))
                (child,) = await app.children(job)
                jobs.broken.clear()
                assert await app.retry(child)
                assert await app.result(child, timeout="30s") == "bad"
                await app.signal(job, "resume report")
                assert await app.result(job, timeout="30s") == {"report": "bad"}

    async def test_resumed_job_waits_for_jobs_that_did_not_run_before(self, app: App, jobs: Jobs) -> None:
        flow = Flow()
        bad = flow.add(jobs.fail.new("bad"))
        between = flow.add(jobs.note.partial(then="+"), after=bad)
        flow.add(jobs.note, after=between, if_failed="hold", name="report")
        async with app:
            job = await app.start(flow)
            async with working(app, maintenance=True):
                await eventually(lambda: is_waiting(app, job))
                (child,) = await app.children(job)
                await app.signal(job, "resume report")  # too early: it waits again
                jobs.broken.clear()
                assert await app.retry(child)
                assert await app.result(child, timeout="30s") == "bad"
                await app.signal(job, "resume report")
                assert await app.result(job, timeout="30s") == {"report": "bad+"}

    async def test_failed_flow_goes_on_after_retries(self, app: App, jobs: Jobs) -> None:
        async with app:
            job = await app.start(chain(jobs.add.new(1), jobs.fail.new("bad"), jobs.note))
            async with working(app, maintenance=True):
                await eventually(lambda: ended(app, job))
                jobs.broken.clear()
                child = (await app.children(job))[-1]
                assert await app.retry(child)
                assert await app.retry(job)
                assert await app.result(job, timeout="30s") == "bad"
            assert jobs.ran == ["add 1 1", "note bad"]

    @pytest.mark.parametrize(
        "args", [{"nodes": [], "results": "x"}, {"nodes": [{"name": "x"}], "results": []}, {"nodes": 5, "results": []}]
    )
    async def test_arguments_that_are_no_flow_fail_at_once(self, app: App, args: dict[str, Any]) -> None:
        async with app:
            job = await app.enqueue("awa.flow", args)
            await drain(app)
            failed = await app.get(job)
            assert (failed.state, len(failed.errors)) == (State.FAILED, 1)


def circle(jobs: Jobs) -> Flow:
    flow = Flow()
    flow.add(jobs.end, after="c", name="a")
    flow.add(jobs.end, after="a", name="b")
    flow.add(jobs.end, after=["b"], name="c")
    flow.add(jobs.end, name="d")
    return flow


def unknown(jobs: Jobs) -> Flow:
    flow = Flow()
    flow.add(jobs.end, after="nowhere")
    return flow


def twice(jobs: Jobs) -> Flow:
    flow = Flow()
    flow.add(jobs.end, name="a")
    flow.add(jobs.end, name="a")
    return flow


def wrong_argument(jobs: Jobs) -> Flow:
    flow = Flow()
    flow.add(jobs.end, name="a")
    flow.add(jobs.add, takes={"c": "a"})
    return flow


anything: Any = object()


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda jobs: Flow(), "the flow has no jobs"),
        (lambda jobs: chain(), "the flow has no jobs"),
        (circle, "these jobs depend on each other in a circle: a ← c ← b ← a"),
        (unknown, '"end" depends on "nowhere", and no job of the flow has that name'),
        (twice, 'two jobs have the name "a"'),
        (wrong_argument, 'add has no argument "c" that could take a result'),
        (lambda jobs: chain(jobs.add, jobs.end), 'add: missing argument "a"'),
        (lambda jobs: chain(anything), "a flow has jobs, e.g. send.new(5) or send, not <object"),
        (lambda jobs: chain(jobs.end, if_failed=anything), "if_failed is one of cancel, run, hold"),
        (lambda jobs: chain(jobs.end.options(unique=True).new()), "a job of a flow has no unique key"),
        (lambda jobs: chain(jobs.end.options(unique=True)), "a job of a flow has no unique key"),
        (lambda jobs: chain(jobs.add.options(concurrency_key="{a}")), "the concurrency_key of the declaration"),
        (lambda jobs: chain(jobs.add.partial(c=1)), 'unexpected argument "c"'),
        (lambda jobs: chain(jobs.add.partial(a="one")), 'argument "a"'),
        (lambda jobs: group(*[jobs.end] * 1001), "1001 jobs in one flow, the limit is 1000"),
        (
            lambda jobs: chain(jobs.fail.new("x" * 1_000_000), jobs.fail.new("x" * 100_000)),
            "flow: 1100330 bytes of arguments, the limit is 1048576 bytes",
        ),
    ],
)
async def test_flow_that_cannot_run_is_refused(
    app: App, jobs: Jobs, session: Session, make: Callable[[Jobs], Flow], error: str
) -> None:
    async with app:
        with pytest.raises(InvalidJob, match=re.escape(error)):
            await app.start(make(jobs))
    assert await states(session) == {}


@pytest.mark.parametrize("name", ["", "x" * 151, "a\nb"])
def test_name_of_a_job_of_a_flow_is_checked(app: App, jobs: Jobs, name: str) -> None:
    with pytest.raises(InvalidJob, match="name"):
        Flow().add(jobs.end, name=name)


def test_job_of_a_flow_survives_its_json(app: App, jobs: Jobs) -> None:
    options: awa.JobOptions = {
        "queue": "q",
        "priority": 1,
        "delay": "5s",
        "timeout": "1m",
        "tags": ["a"],
        "metadata": {"m": 1},
        "concurrency_key": "k:{a}",
        "concurrency_limit": 4,
    }
    for job in (jobs.add.options(**options).new(2), jobs.add.new(2), app.new("unknown", {"a": 2}, priority=3)):
        values = json.loads(job.to_json()) | {"as_given": job.spec.is_complete}
        copied = job_from_json(values, {"a": 2})
        assert (json.loads(copied.to_json()), copied.spec.given) == (json.loads(job.to_json()), job.spec.given)


async def test_examples_of_the_documentation_work(app: App) -> None:
    page = (Path(__file__).parents[2] / "docs" / "flows.md").read_text()

    @app.job
    async def extract(day: str) -> list[int]:
        return [1, 2, len(day)]

    @app.job
    async def clean(rows: list[int], strict: bool = False) -> list[int]:
        return [row for row in rows if row > strict]

    @app.job
    async def total(parts: list[list[int]]) -> int:
        return sum(map(sum, parts))

    @app.job
    async def mail(text: list[int]) -> str:
        return f"sent {text}"

    names: dict[str, Any] = {"app": app, "awa": awa, "extract": extract, "clean": clean, "total": total, "mail": mail}
    async with app, working(app, maintenance=True):
        found = []
        for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
            source = "\n".join(f"    {line}" for line in block.splitlines())
            exec(f"async def example():\n{source}\n    return job", names)
            found.append(await app.result(await names["example"](), timeout="30s"))
    assert found == ["sent [2, 10]", 31, {"mail": "sent [2, 10]", "total": 25}]
