"""Commands for durable jobs."""

import json
import re

import pytest

from awa_py.connections import Connection
from awa_py.model.job import NO_TIMER
from awa_py.store.session import Session
from tests.acceptance.conftest import Awa
from tests.support import insert, insert_completed

pytestmark = pytest.mark.integration

WAITS = json.dumps({"signals": ["approved"]})
ORDERS = """
import awa_py as awa

app = awa.App()


async def reserve(item: str) -> dict[str, str]:
    return {"item": item, "note": "\\x1b[31mred"}


def charge(amount: int) -> int:
    return amount


async def decline() -> None:
    raise ValueError("card declined")


@app.job
async def pack(n: int) -> int:
    if n == 2:
        raise awa.Cancel("no box")
    return n


@app.job(queue="later")
async def deliver() -> None: ...


@app.job
async def order(ctx: awa.Context, item: str) -> str:
    await ctx.step("reserve", reserve, item)
    try:
        await ctx.step("decline", decline)
    except ValueError:
        pass
    for amount in (1, 2):
        await ctx.step("charge", charge, amount)
    await ctx.map(pack, [1, 2, 3]).keep_going()
    child = await ctx.spawn(deliver)
    signal = await ctx.wait_signal("approved", timeout="7d")
    await child
    return signal.data["by"]
"""
TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"


async def signals(connection: Connection) -> list[tuple[str, object, str | None]]:
    rows = await connection.fetch("SELECT name, data, key FROM awa.signals ORDER BY id")
    return [(name, None if data is None else json.loads(data), key) for name, data, key in rows]


class TestJobSignal:
    async def test_signal_wakes_a_waiting_job(self, awa: Awa, session: Session) -> None:
        (job_id,) = await insert(session, "scheduled", state="waiting", waits=WAITS)
        assert awa.ok("job", "signal", str(job_id), "other").out == f"job {job_id}: signalled\n"
        assert awa.ok("job", "show", str(job_id), "--json").json["state"] == "waiting"
        assert awa.ok("job", "signal", str(job_id), "approved", '{"by": "ann"}').out == f"job {job_id}: signalled\n"
        assert awa.ok("job", "show", str(job_id), "--json").json["state"] == "available"
        assert await signals(session.connection) == [("other", None, None), ("approved", {"by": "ann"}, None)]

    async def test_signal_has_any_json(self, awa: Awa, session: Session) -> None:
        job_id = awa.ok("enqueue", "work").out.strip()
        for data in ("[1]", '"text"', "null", "7"):
            awa.ok("job", "signal", job_id, "go", data)
        assert [data for _, data, _ in await signals(session.connection)] == [[1], "text", None, 7]

    async def test_signal_with_a_key_is_sent_once(self, awa: Awa, session: Session) -> None:
        job_id = awa.ok("enqueue", "work").out.strip()
        awa.ok("job", "signal", job_id, "go", "1", "--key", "k")
        again = awa.ok("job", "signal", job_id, "go", "2", "--key", "k")
        assert again.out == f"job {job_id}: a signal with this name and key was sent before\n"
        assert await signals(session.connection) == [("go", 1, "k")]

    def test_signal_to_an_ended_job_is_refused(self, awa: Awa) -> None:
        job_id = awa.ok("enqueue", "work").out.strip()
        awa.ok("job", "cancel", job_id)
        answer = awa("job", "signal", job_id, "go")
        assert answer.code == 1
        assert answer.err == f'awa: job {job_id} has ended (cancelled): the signal "go" was not sent\n'


class TestJobRetry:
    async def test_retry_leaves_a_waiting_job_alone_and_tells_how_to_wake_it(self, awa: Awa, session: Session) -> None:
        (job_id,) = await insert(session, "scheduled", state="waiting", waits=WAITS, run_at=NO_TIMER)
        answer = awa("job", "retry", str(job_id))
        assert answer.code == 1
        assert answer.err == (
            f'awa: job {job_id} is waiting: nothing was changed. It waits for the signal "approved". It occupies no '
            f"slot. To send the signal: `awa job signal {job_id} approved`. To run it again from one of its steps: "
            f"`awa job rewind {job_id} --to STEP`.\n"
        )
        assert awa.ok("job", "show", str(job_id), "--json").json["state"] == "waiting"

    async def test_retry_by_filter_refuses_waiting_jobs(self, awa: Awa, session: Session) -> None:
        await insert(session, "scheduled", state="waiting", waits=WAITS)
        answer = awa("job", "retry", "--state", "waiting", "--yes")
        assert answer.code != 0
        assert "retry does not apply to waiting jobs" in answer.err


def work(awa: Awa, *queues: str) -> None:
    """Run a worker until nothing is due."""
    awa.ok("worker", "orders:app", "--burst", *(word for queue in queues for word in ("-q", queue)))


def shown_steps(text: str) -> list[str]:
    """Return the lines of the table of steps, without times and durations."""
    lines = text[text.index("step ") :].splitlines()[1:]
    lines = lines[: lines.index("")]
    return [" ".join(re.sub(r"\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}|[\d.]+(µs|ms|s)\b", "", line).split()) for line in lines]


class TestWaitingJobs:
    async def test_waiting_jobs_are_counted(self, awa: Awa, session: Session) -> None:
        await insert(session, "ready")
        assert "wait" not in awa.ok("queue", "list").out.splitlines()[0].split()
        await insert(session, "scheduled", 3, state="waiting", waits=WAITS, run_at=NO_TIMER)
        header, row = awa.ok("queue", "list").out.splitlines()
        assert dict(zip(header.split(), row.split(), strict=False))["wait"] == "3"
        assert re.search(r"waiting +3", awa.ok("queue", "show", "default").out)
        assert awa.ok("stats", "--json").json["states"]["waiting"] == 3
        listed = awa.ok("job", "list", "--state", "waiting").out.splitlines()
        assert len(listed) == 4
        assert "due" not in listed[1]  # it waits for no time
        assert "due" not in awa.ok("job", "show", listed[1].split()[0]).out

    async def test_purge_leaves_waiting_jobs_and_removes_what_others_remember(self, awa: Awa, session: Session) -> None:
        (kept,) = await insert(session, "scheduled", state="waiting", waits=WAITS, run_at=NO_TIMER)
        (purged,) = await insert(session, "ready", lease=1)
        await session.connection.execute(
            "INSERT INTO awa.checkpoints (job_id, name, number, type, lease) "
            "SELECT id, 'a', 1, 'step', 1 FROM unnest($1::bigint[]) AS id",
            [kept, purged],
        )
        for job_id in (kept, purged):
            awa.ok("job", "signal", str(job_id), "other", "--key", "k")
        assert awa.ok("queue", "purge", "default", "--yes").out == 'queue "default": 1 job deleted\n'
        for table in ("checkpoints", "signals", "signal_keys"):
            rows = await session.connection.fetch(f"SELECT job_id FROM awa.{table}")
            assert [row["job_id"] for row in rows] == [kept], table


class TestDurableJob:
    """A real job that a real worker runs, from its first wait to its end."""

    def test_steps_waits_and_children_are_shown_while_it_waits_and_afterwards(self, awa: Awa) -> None:
        (awa.directory / "orders.py").write_text(ORDERS)
        job_id = awa.ok("enqueue", "order", '{"item": "book"}').out.strip()
        work(awa, "default")
        waiting = awa.ok("job", "show", job_id).out
        ids = [int(found) for found in re.findall(r"[├└] job (\d+)", waiting)]
        assert len(ids) == 4
        steps = [
            'reserve step 1 {"item": "book", "note": "\\u001b[31mred"}',
            "decline step 1 ValueError: card declined",
            "charge step 1 1",
            "charge#2 step 1 2",
            "pack spawn 1 3 children",
            f"├ job {ids[0]} pack 1 completed",
            f"├ job {ids[1]} pack 1 cancelled no box",
            f"└ job {ids[2]} pack 1 completed",
            "deliver spawn 1 1 child",
        ]
        *first, child, wait = shown_steps(waiting)
        assert first == steps
        assert child == f"└ job {ids[3]} deliver 0 available"
        assert re.fullmatch(rf"approved signal 1 waits until {TIME} \(in [67]d\)", wait)
        assert "4 children: 1 available, 2 completed, 1 cancelled." in waiting
        sentence = rf'It waits for the signal "approved" since {TIME} \([^)]+\), until {TIME} \(in [67]d\)\.'
        assert re.search(sentence, waiting)
        assert re.match(sentence, awa.ok("job", "explain", job_id).out)
        assert "suspended" in waiting
        found = awa.ok("job", "list", "--state", "waiting", "--json").json
        assert [str(job["id"]) for job in found] == [job_id]

        tree = awa.ok("job", "tree", str(ids[0])).out
        assert [line.split()[:4] for line in tree.splitlines()[1:]] == [
            [job_id, "order", "waiting", "until"],
            ["├─", str(ids[0]), "pack", "completed"],
            ["├─", str(ids[1]), "pack", "cancelled"],
            ["├─", str(ids[2]), "pack", "completed"],
            ["└─", str(ids[3]), "deliver", "available"],
        ]
        listed = awa.ok("job", "tree", job_id, "--json").json
        assert [job["id"] for job in listed["jobs"]] == [int(job_id), *ids]

        awa.ok("job", "signal", job_id, "approved", '{"by": "ann"}')
        work(awa, "default")
        explained = awa.ok("job", "explain", job_id).out
        assert explained.startswith(f"It waits for 1 of 1 child (job {ids[3]}) since ")
        work(awa, "later", "default")
        ended = awa.ok("job", "show", job_id).out
        assert re.search(r"state +completed", ended)
        assert shown_steps(ended) == [
            *steps,
            f"└ job {ids[3]} deliver 1 completed",
            'approved signal 1 {"by": "ann"}',
        ]
        assert "It waits" not in ended
        shown = awa.ok("job", "show", job_id, "--json").json
        assert [each["name"] for each in shown["checkpoints"]] == [
            *("reserve", "decline", "charge", "charge#2", "pack", "deliver", "approved")
        ]
        assert shown["checkpoints"][1]["error"] == "ValueError: card declined"
        assert shown["waits"] is None
        assert shown["children"]["counts"] == {"completed": 3, "cancelled": 1}

        answer = awa("job", "rewind", job_id, "--to", "pay")
        assert answer.code == 1
        assert answer.err.startswith(f'awa: job {job_id} has no step "pay". Its steps are "reserve", "decline", ')
        rewound = awa.ok("job", "rewind", job_id, "--to", "deliver").out
        assert rewound == f'job {job_id}: available. 2 steps forgotten: "deliver", "approved"\n'
        awa.ok("job", "signal", job_id, "approved", '{"by": "bob"}')
        work(awa, "default")
        again = awa.ok("job", "rewind", job_id, "--to", "deliver", "--json").json
        assert again["forgotten"] == ["deliver", "approved"]
        assert len(again["cancelled"]) == 1
        assert awa.ok("job", "show", str(again["cancelled"][0]), "--json").json["state"] == "cancelled"

    async def test_plain_job_has_no_steps(self, awa: Awa) -> None:
        job_id = awa.ok("enqueue", "work").out.strip()
        assert "step" not in awa.ok("job", "show", job_id).out
        shown = awa.ok("job", "show", job_id, "--json").json
        assert (shown["checkpoints"], shown["waits"], shown["children"]["counts"]) == ([], None, {})
        assert awa.ok("job", "tree", job_id).out.splitlines()[1].split()[:2] == [job_id, "work"]

    async def test_wide_tree_is_cut(self, awa: Awa, session: Session) -> None:
        (parent,) = await insert(session, "ready")
        await insert(session, "ready", 1500, parent_id=parent)
        lines = awa.ok("job", "tree", str(parent)).out.splitlines()
        assert lines[-2].strip() == "└─ … and 501 more"
        assert lines[-1] == "The tree is larger: these are 1,000 jobs of it."
        shown = awa.ok("job", "show", str(parent)).out
        assert f"1,500 children: 1,500 available. All of them: `awa job tree {parent}`." in shown

    async def test_long_chain_is_shown(self, awa: Awa, session: Session) -> None:
        await session.connection.execute(
            "INSERT INTO awa.ready (id, parent_id, kind) "
            "SELECT n, CASE WHEN n > 1000000 THEN n - 1 END, 'work' FROM generate_series(1000000, 1000600) AS n"
        )
        assert len(awa.ok("job", "tree", "1000600").out.splitlines()) == 602
        assert len(awa.ok("job", "tree", "1000600", "--json").json["jobs"]) == 601

    @pytest.mark.parametrize(
        "values",
        [
            {"result": "null", "error": "null"},
            {"type": "signal", "result": '"text"'},
            {"type": "signal", "result": '{"data": {"deep": [1]}}'},
            {"type": "signal", "is_open": True},
            {"type": "timer"},
            {"type": "spawn", "result": '{"not": "ranges"}'},
            {"type": "choice", "result": '"\\u001b[2J\\u0000\\ud800"'},
            {"result": '"' + "x" * 2_000_000 + '"'},
            {"result": "[" * 5000 + "]" * 5000},
            {"result": "1" + "0" * 5000, "took_s": float("nan")},
            {"error": '{"class": "E\\u001b[2J", "text": "line one\\nline two"}'},
            {"error": "[1, 2]", "tries": -5, "took_s": float("inf")},
        ],
        ids=str,
    )
    async def test_odd_checkpoints_are_shown(self, awa: Awa, session: Session, values: dict[str, object]) -> None:
        """Whatever an operator wrote, in the table or in the row of a completed job."""
        (job_id,) = await insert(session, "dead", state="failed")
        row = {"job_id": job_id, "name": "charge", "number": 7, "type": "step", "lease": 1, **values}
        places = ", ".join(f"${n}" for n in range(1, len(row) + 1))
        await session.connection.execute(
            f"INSERT INTO awa.checkpoints ({', '.join(row)}) VALUES ({places})", *row.values()
        )
        await session.connection.execute("UPDATE awa.checkpoints SET recorded_at = 'infinity'")
        failed = awa.ok("job", "show", str(job_id)).out
        folded = await session.connection.fetchval(
            "WITH gone AS (DELETE FROM awa.checkpoints RETURNING *) SELECT json_agg(row_to_json(gone))::text FROM gone"
        )
        (completed_id,) = await insert_completed(session, age_s=1, checkpoints=folded)
        completed = awa.ok("job", "show", str(completed_id)).out
        for text in (failed, completed):
            assert "\x1b" not in text
            assert len(text) < 5_000
        json_text = awa.ok("job", "show", str(completed_id), "--json").out
        assert "\x1b" not in json_text
        assert len(json.loads(json_text)["checkpoints"]) == 1
