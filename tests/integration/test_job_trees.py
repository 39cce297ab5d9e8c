"""Reading trees of jobs, and what durable jobs remember and wait for."""

import json
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest

from awa_py.model.job import NO_TIMER, State
from awa_py.store import durable_jobs, job_trees
from awa_py.store.session import Session
from tests.support import insert, insert_completed, insert_running

pytestmark = pytest.mark.integration


class TestTree:
    async def test_tree_begins_at_the_root_of_any_job(self, session: Session) -> None:
        (root,) = await insert(session, "scheduled", state="waiting", waits="{}", run_at=NO_TIMER)
        (child,) = await insert_running(session, parent_id=root)
        (leaf,) = await insert_completed(session, age_s=1, parent_id=child)
        for job_id in (root, child, leaf):
            tree = await job_trees.read_tree(session, job_id)
            assert tree is not None
            assert tree.root.id == root
            assert {parent: [job.id for job in jobs] for parent, jobs in tree.children.items()} == {
                root: [child],
                child: [leaf],
            }
            assert not tree.is_cut

    async def test_wide_tree_is_cut_and_tells_how_many_are_hidden(self, session: Session) -> None:
        (root,) = await insert(session, "ready")
        one, other = await insert(session, "ready", 2, parent_id=root)
        await insert(session, "ready", 100, parent_id=one)
        await insert(session, "ready", 3, parent_id=other)
        tree = await job_trees.read_tree(session, root, limit=20)
        assert tree is not None
        assert tree.is_cut
        assert 1 + sum(map(len, tree.children.values())) == 20
        assert len(tree.children[other]) == 3  # a large family does not hide a small one
        assert tree.hidden == {one: 100 - len(tree.children[one])}

    async def test_tree_of_exactly_the_limit_is_whole(self, session: Session) -> None:
        (root,) = await insert(session, "ready")
        await insert(session, "ready", 4, parent_id=root)
        tree = await job_trees.read_tree(session, root, limit=5)
        assert tree is not None
        assert not tree.is_cut
        assert not tree.hidden

    async def test_job_that_is_its_own_ancestor_does_no_harm(self, session: Session) -> None:
        one, other = await insert(session, "ready", 2)
        await session.connection.execute(
            "UPDATE awa.ready SET parent_id = CASE id WHEN $1 THEN $2 ELSE $1 END", one, other
        )
        tree = await job_trees.read_tree(session, one)
        assert tree is not None
        assert sum(map(len, tree.children.values())) == 1

    async def test_deleted_parent_is_no_root(self, session: Session) -> None:
        (job_id,) = await insert(session, "ready", parent_id=10**15)
        tree = await job_trees.read_tree(session, job_id)
        assert tree is not None
        assert tree.root.id == job_id
        assert await job_trees.read_tree(session, 10**15) is None

    async def test_children_are_counted_by_state(self, session: Session) -> None:
        (root,) = await insert(session, "ready")
        await insert(session, "ready", 30, parent_id=root)
        await insert_completed(session, 5, age_s=1, parent_id=root)
        found = await job_trees.list_child_jobs(session, root, limit=20)
        assert len(found.first) == 20
        assert found.counts == {State.AVAILABLE: 30, State.COMPLETED: 5}
        assert found.total == 35


class TestWait:
    async def waits(self, session: Session, waits: Any, **columns: Any) -> durable_jobs.JobWait:
        columns = {"run_at": NO_TIMER, **columns}
        (job_id,) = await insert(session, "scheduled", state="waiting", waits=json.dumps(waits), **columns)
        found = await durable_jobs.get_wait(session, job_id)
        assert found is not None
        return found

    async def test_signals_and_timeout(self, session: Session) -> None:
        until = datetime(2031, 5, 3, tzinfo=UTC)
        waits = {"signals": ["a", "b"], "since": "2026-05-01T09:00:00+00:00"}
        found = await self.waits(session, waits, run_at=until)
        since = datetime(2026, 5, 1, 9, tzinfo=UTC)
        assert found == durable_jobs.JobWait(since=since, until=until, signals=["a", "b"], unfinished_ids=[])

    async def test_unfinished_children_are_counted(self, session: Session) -> None:
        (parent,) = await insert(session, "scheduled", state="waiting", waits="{}", run_at=NO_TIMER)
        ids = await insert(session, "ready", 10, parent_id=parent)
        done = await insert_completed(session, 10, age_s=1, parent_id=parent)
        waits = {"children": [{"ids": [[ids[0], done[-1]]], "fail_fast": True}]}
        await session.connection.execute("UPDATE awa.scheduled SET waits = $1", json.dumps(waits))
        found = await durable_jobs.get_wait(session, parent)
        assert found is not None
        assert (found.children, found.unfinished, found.unfinished_ids) == (20, 10, ids[:5])

    @pytest.mark.parametrize("waits", [{}, {"signals": [None, {"a": 1}], "children": [], "since": "infinity"}])
    async def test_odd_values_do_no_harm(self, session: Session, waits: Any) -> None:
        found = await self.waits(session, waits)
        assert (found.since, found.until, found.children, found.unfinished) == (None, None, 0, 0)

    @pytest.mark.parametrize(
        "waits",
        [
            {"signals": None},
            {"signals": 5},
            {"children": None},
            {"children": "x"},
            {"children": [None]},
            {"children": [{"ids": 7, "fail_fast": True}]},
            {"children": [{"ids": [[1, 2]]}]},
            *[
                {"children": [{"ids": [part], "fail_fast": True}]}
                for part in ([1], "x", [1, "b"], [1, 10**40], [-5, 3])
            ],
        ],
    )
    async def test_waits_that_cannot_be_read_are_refused(self, session: Session, waits: Any) -> None:
        with pytest.raises(asyncpg.CheckViolationError, match="waits_can_be_read"):
            await self.waits(session, waits)

    async def test_job_that_does_not_wait_has_no_wait(self, session: Session) -> None:
        (job_id,) = await insert(session, "ready")
        assert await durable_jobs.get_wait(session, job_id) is None


class TestCheckpoints:
    async def test_checkpoints_of_a_completed_job_are_those_of_its_row(self, session: Session) -> None:
        (job_id,) = await insert(session, "ready")
        await session.connection.execute(
            """INSERT INTO awa.checkpoints (job_id, name, number, type, lease, tries, took_s, result, error, until)
               VALUES ($1, 'b', 2, 'step', 1, 3, 0.5, '{"a": 1.50}', NULL, NULL),
                      ($1, 'a', 1, 'step', 1, 1, NULL, NULL, '{"class": "ValueError", "text": "no"}', NULL),
                      ($1, 'c', 3, 'timer', 2, 1, NULL, NULL, NULL, '2031-05-03')""",
            job_id,
        )
        unfinished = await durable_jobs.list_checkpoints(session, job_id)
        assert [(each.name, each.tries, each.result, each.error) for each in unfinished] == [
            ("a", 1, None, "ValueError: no"),
            ("b", 3, {"a": 1.5}, None),
            ("c", 1, None, None),
        ]
        assert unfinished[1].took_s == 0.5
        assert unfinished[2].until == datetime(2031, 5, 3, tzinfo=UTC)
        folded = await session.connection.fetchval(
            "WITH gone AS (DELETE FROM awa.checkpoints RETURNING *) "
            "SELECT json_agg(row_to_json(gone) ORDER BY number)::text FROM gone"
        )
        await session.connection.execute("DELETE FROM awa.ready")
        await insert_completed(session, age_s=1, id=job_id, checkpoints=folded)
        assert await durable_jobs.list_checkpoints(session, job_id) == unfinished

    async def test_long_result_is_cut_but_ids_of_children_are_not(self, session: Session) -> None:
        ranges = [[n * 10, n * 10 + 5] for n in range(1, 2000)]
        await session.connection.execute(
            "INSERT INTO awa.checkpoints (job_id, name, number, type, lease, result) "
            "VALUES (1, 'a', 1, 'step', 1, $1), (1, 'b', 2, 'spawn', 1, $2)",
            json.dumps("x" * 1_000_000),
            json.dumps(ranges),
        )
        step, spawn = await durable_jobs.list_checkpoints(session, 1)
        assert (step.is_cut, len(step.result)) == (True, durable_jobs.MAX_RESULT_CHARACTERS)
        assert spawn.children == [(first, last) for first, last in ranges]

    @pytest.mark.parametrize(
        "folded",
        [
            "null",
            "5",
            '{"name": "a"}',
            "[]",
            '[null, 5, "x", [], {}]',
            '[{"name": 5, "number": "x", "type": null, "tries": [], "took_s": "x", "error": 7, "until": "never"}]',
            r'[{"name": "\u0000\ud800", "number": 1e400, "result": "\u0000", "error": {"class": "\u0000", "text": 5}}]',
            f'[{{"name": "a", "result": {"[" * 2000}1{"]" * 2000}}}]',
            f'[{{"name": "a", "took_s": 1{"0" * 5000}, "recorded_at": "infinity", "type": "spawn", "result": {{}}}}]',
        ],
    )
    async def test_odd_values_do_no_harm(self, session: Session, folded: str) -> None:
        (job_id,) = await insert_completed(session, age_s=1, checkpoints=folded)
        for each in await durable_jobs.list_checkpoints(session, job_id):
            assert isinstance(each.name, str)
            assert each.recorded_at is None
            assert each.children == []
