"""The plans of the hot statements on large tables: index scans, no sort, no scan of a whole table."""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from awa_py.connections import DedicatedConnection
from awa_py.db.database import STABLE_PLAN_SETTINGS, Database
from awa_py.db.schema import Schema
from awa_py.store.finish import fail_attempts
from awa_py.store.session import Session, statement
from tests.support import OWNER, insert_running

pytestmark = pytest.mark.integration

Node = dict[str, Any]

CLAIM_SCANS = [("Index Only Scan", "ready_keyed_order"), ("Index Scan", "ready_order"), ("Tid Scan", None)]
NEXT_STATES = '[{"kind": "next"}]'
CLAIM = "'q1', '{1,2,3,4}', '{0,0,0,0}', 100, '{work}', '00000000-0000-4000-8000-000000000002', '{work}', true"


@pytest.fixture
async def big(big_url: str) -> AsyncIterator[DedicatedConnection]:
    connection = await Database(big_url, Schema()).connect("test", STABLE_PLAN_SETTINGS)
    yield connection
    await connection.close()


async def plan(connection: DedicatedConnection, name: str, values: str, *, generic: bool = False) -> Node:
    """Return the plan of a statement: for these values, or the generic plan of a prepared statement."""
    mode = "force_generic_plan" if generic else "force_custom_plan"
    await connection.execute(f"SET plan_cache_mode = {mode}")
    await connection.execute(f"PREPARE p AS {statement(name, Schema())}")
    try:
        text = await connection.fetchval(f"EXPLAIN (FORMAT JSON, COSTS OFF) EXECUTE p ({values})")
    finally:
        await connection.execute("DEALLOCATE p")
    root: Node = json.loads(text)[0]["Plan"]
    return root


def nodes(node: Node) -> Iterator[Node]:
    yield node
    for child in node.get("Plans", ()):
        yield from nodes(child)


def below(node: Node) -> Iterator[Node]:
    """Return the inputs of a node, without attached CTEs and sub-plans."""
    for child in node.get("Plans", ()):
        if child["Parent Relationship"] not in ("InitPlan", "SubPlan"):
            yield child
            yield from below(child)


def scans(root: Node, relation: str) -> list[tuple[str, str | None]]:
    """Return the scans of a table."""
    return [
        (node["Node Type"], node.get("Index Name"))
        for node in nodes(root)
        if node.get("Relation Name") == relation and "Scan" in node["Node Type"]
    ]


def scans_by_value(root: Node, relation: str) -> list[tuple[str, str | None]]:
    """Return the scans that find rows by their values: not those by ctid, which read the rows of another scan."""
    return [scan for scan in scans(root, relation) if scan[0] != "Tid Scan"]


def sorted_tables(root: Node) -> set[str]:
    """Return the tables whose rows are sorted."""
    return {
        feeding["Relation Name"]
        for node in nodes(root)
        if "Sort" in node["Node Type"]
        for feeding in below(node)
        if "Relation Name" in feeding
    }


@pytest.mark.parametrize("generic", [False, True], ids=["custom", "generic"])
class TestStablePlans:
    async def test_plan_of_the_claim(self, big: DedicatedConnection, generic: bool) -> None:
        root = await plan(big, "claim_jobs", CLAIM, generic=generic)
        assert sorted(scans(root, "ready")) == CLAIM_SCANS
        assert "ready" not in sorted_tables(root)

    async def test_children_are_read_without_a_check_of_all_for_each(
        self, big: DedicatedConnection, generic: bool
    ) -> None:
        root = await plan(big, "read_children", "1, '[[1, 9]]', true", generic=generic)
        filters = [str(value) for node in nodes(root) for name, value in node.items() if "Filter" in name]
        assert filters
        assert not any("children_have_ended" in each for each in filters)

    async def test_claim_reads_payloads_by_id(self, big: DedicatedConnection, generic: bool) -> None:
        root = await plan(big, "claim_jobs", CLAIM, generic=generic)
        assert scans(root, "payloads") == [("Index Scan", "payloads_pkey")]

    @pytest.mark.parametrize(
        ("name", "values"), [("delete_stray_payloads", "0, 5000"), ("delete_completed_jobs", "'1 day', 5000")]
    )
    async def test_cleanup_finds_payloads_by_id(
        self, big: DedicatedConnection, generic: bool, name: str, values: str
    ) -> None:
        root = await plan(big, name, values, generic=generic)
        assert {index for _, index in scans(root, "payloads")} == {"payloads_pkey"}

    async def test_cleanup_finds_completed_jobs_with_payloads_by_their_index(
        self, big: DedicatedConnection, generic: bool
    ) -> None:
        root = await plan(big, "delete_completed_jobs", "'1 day', 5000", generic=generic)
        (found,) = [node for node in nodes(root) if node.get("Subplan Name") == "CTE with_payload"]
        parts = [node for node in nodes(found) if node.get("Relation Name", "").startswith("completed_2")]
        assert len(parts) >= 8
        assert {node["Node Type"] for node in parts} == {"Index Scan"}

    @pytest.mark.parametrize("since", ["NULL", "now() - interval '1 s'"])
    async def test_plan_of_the_promotion(self, big: DedicatedConnection, generic: bool, since: str) -> None:
        root = await plan(big, "promote_jobs", f"1000, {since}", generic=generic)
        found = scans(root, "scheduled")
        assert ("Tid Scan", None) in found
        assert {index for kind, index in found if kind != "Tid Scan"} == {"scheduled_run_at"}
        assert "scheduled" not in sorted_tables(root)

    async def test_plan_of_rescuing_stale_jobs(self, big: DedicatedConnection, generic: bool) -> None:
        root = await plan(big, "rescue_stale_jobs", "'90 seconds', 500, '1 hour', now()", generic=generic)
        assert scans(root, "running") == [("Index Scan", "running_attempted_at")]
        assert "running" not in sorted_tables(root)

    async def test_plan_of_rescuing_overdue_jobs(self, big: DedicatedConnection, generic: bool) -> None:
        root = await plan(big, "rescue_overdue_jobs", "500", generic=generic)
        assert scans(root, "running") == [("Index Scan", "running_deadline_at")]
        assert "running" not in sorted_tables(root)

    async def test_plan_of_failing_expired_jobs(self, big: DedicatedConnection, generic: bool) -> None:
        root = await plan(big, "fail_expired_jobs", "500", generic=generic)
        assert sorted(scans(root, "ready")) == [("Index Scan", "ready_expires_at"), ("Tid Scan", None)]
        assert sorted(scans(root, "scheduled")) == [("Index Scan", "scheduled_expires_at"), ("Tid Scan", None)]
        assert sorted_tables(root) == set()

    @pytest.mark.parametrize(
        ("name", "values"),
        [
            ("complete_jobs", f"'{{1,2,3}}', '{{1,1,1}}', '{OWNER}', '{{null,null,null}}', true, 3"),
            ("snooze_jobs", f"'{{1,2,3}}', '{{1,1,1}}', '{OWNER}', '{{1s,1s,1s}}'"),
            ("advance_jobs", f"'{{1,2,3}}', '{{1,1,1}}', '{OWNER}', '{NEXT_STATES}'"),
            ("throttle_jobs", f"'{{1,2,3}}', '{{1,1,1}}', '{OWNER}', '{{a,b,c}}'"),
            ("discard_jobs", f"'{{1,2,3}}', '{{1,1,1}}', '{OWNER}', '{{failed,failed,failed}}', '{{a,b,c}}', NULL"),
            ("release_jobs", f"'{{1,2,3}}', '{{1,1,1}}', '{OWNER}'"),
            ("renew_leases", f"'{{1,2,3}}', '{{1,1,1}}', '{OWNER}'"),
            ("update_progress", f"'{{1,2,3}}', '{{1,1,1}}', '{OWNER}', '{{null,null,null}}'"),
            ("check_leases", f"'{{1,2,3}}', '{{1,1,1}}', '{OWNER}'"),
        ],
    )
    async def test_plans_of_statements_by_id(
        self, big: DedicatedConnection, generic: bool, name: str, values: str
    ) -> None:
        root = await plan(big, name, values, generic=generic)
        assert scans_by_value(root, "running") == [("Index Scan", "running_pkey")]

    async def test_plan_of_polling_many_queues(self, big: DedicatedConnection, generic: bool) -> None:
        root = await plan(big, "has_ready_jobs", "'{q1,q2,q9}', '{work}'", generic=generic)
        assert sorted(scans(root, "ready")) == [("Index Scan", "ready_keys"), ("Index Scan", "ready_order")]

    async def test_plan_of_aging(self, big: DedicatedConnection, generic: bool) -> None:
        root = await plan(big, "age_jobs", "'', 500, '5 m', 100", generic=generic)
        assert {kind for kind, _ in scans(root, "ready")} <= {"Index Scan", "Index Only Scan", "Tid Scan"}
        used = {index for _, index in scans(root, "ready")}
        assert {"ready_order", "ready_keyed_order"} <= used
        assert used <= {
            "ready_order",
            "ready_keyed_order",
            "ready_keys",
            None,
        }  # to walk from queue to queue, any of them will do
        assert "ready" not in sorted_tables(root)

    async def test_plan_of_finding_unserved_jobs(self, big: DedicatedConnection, generic: bool) -> None:
        root = await plan(big, "mark_unserved_jobs", "'', 0, 0, 500, '90 s', '5 s'", generic=generic)
        by_index = [("Index Scan", "ready_keys"), ("Index Scan", "ready_order")]
        assert sorted(scans(root, "ready")) == [*by_index, ("Tid Scan", None)]
        assert "ready" not in sorted_tables(root)


@pytest.mark.parametrize("generic", [False, True], ids=["custom", "generic"])
async def test_plan_of_the_claim_with_default_settings(big_url: str, generic: bool) -> None:
    connection = await Database(big_url, Schema()).connect("test")
    try:
        root = await plan(connection, "claim_jobs", CLAIM, generic=generic)
    finally:
        await connection.close()
    assert sorted(scans(root, "ready")) == CLAIM_SCANS
    assert "ready" not in sorted_tables(root)


async def test_claim_from_many_jobs_reads_as_many_pages_as_from_ten(big: DedicatedConnection) -> None:
    """Counted in pages, not timed: a claim of ten jobs reads few pages, however many jobs there are."""
    async with big.transaction():
        text = statement("claim_jobs", Schema())
        for n, value in enumerate(CLAIM.replace("100", "10").split(", "), 1):
            text = text.replace(f"${n}", value)
        explained = await big.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {text}")
        root = json.loads(explained)[0]["Plan"]
        (scan,) = [node for node in nodes(root) if node.get("Index Name") == "ready_order"]
        assert scan["Actual Rows"] * scan["Actual Loops"] <= 40
        assert scan["Shared Hit Blocks"] + scan["Shared Read Blocks"] < 200


FINISHES = {
    "complete_jobs": f"'{{1}}', '{{1}}', '{OWNER}', NULL, true, 1",
    "release_jobs": f"'{{1}}', '{{1}}', '{OWNER}'",
    "snooze_jobs": f"'{{1}}', '{{1}}', '{OWNER}', '{{1 s}}'",
    "advance_jobs": f"'{{1}}', '{{1}}', '{OWNER}', '{NEXT_STATES}'",
    "discard_jobs": f"'{{1}}', '{{1}}', '{OWNER}', '{{failed}}', '{{no}}', NULL",
    "throttle_jobs": f"'{{1}}', '{{1}}', '{OWNER}', '{{no}}'",
    "renew_leases": f"'{{1}}', '{{1}}', '{OWNER}'",
    "update_progress": f"'{{1}}', '{{1}}', '{OWNER}', '{{1}}'",
    "check_leases": f"'{{1}}', '{{1}}', '{OWNER}'",
}


@pytest.mark.parametrize("generic", [False, True], ids=["custom", "generic"])
@pytest.mark.parametrize("name", FINISHES)
async def test_plan_made_for_an_empty_table_is_good_for_a_full_one(
    database: Database, name: str, generic: bool
) -> None:
    """Vacuum saw an empty table and stored that: a plan made then must be good for a full table too."""
    connection = await database.connect("test", STABLE_PLAN_SETTINGS)
    try:
        await connection.execute(
            "INSERT INTO awa.running (kind, lease, attempt, worker_id) "
            "SELECT 'work', 1, 1, gen_random_uuid() FROM generate_series(1, 2000)"
        )
        await connection.execute("DELETE FROM awa.running")
        await connection.execute("VACUUM ANALYZE awa.running")
        root = await plan(connection, name, FINISHES[name], generic=generic)
    finally:
        await connection.close()
    assert scans_by_value(root, "running") == [("Index Scan", "running_pkey")]
    (scan,) = [node for node in nodes(root) if node.get("Index Name") == "running_pkey"]
    assert "ANY" in scan["Index Cond"]
    assert not [node for node in nodes(root) if node.get("Function Name") == "unnest"]


async def test_cost_of_failures_grows_linearly(session: Session) -> None:
    """The same for awa.fail_attempts. Counted in index reads, not timed."""
    await session.connection.execute("VACUUM ANALYZE awa.running")  # empty
    ids = await insert_running(session, 4_000)
    async with session.connection.transaction():
        fetched = "SELECT pg_stat_get_xact_blocks_fetched('awa.running_pkey'::regclass)"
        before = await session.connection.fetchval(fetched)
        answers = await fail_attempts(session, OWNER, ids, [1] * 4_000, ["no"] * 4_000, [None] * 4_000)
        read = await session.connection.fetchval(fetched) - before
    assert len(answers) == 4_000
    assert read < 20_000
