"""Connection checks of `awa doctor`: poolers, notifications, clocks."""

import time
from dataclasses import replace

import pytest

from awa_py import Settings
from awa_py.connections import Connection
from awa_py.db.database import Database
from awa_py.doctor import CHECKS, Finding, Level, run_checks
from awa_py.doctor.connectivity import evaluate_clock, measure_skew
from awa_py.doctor.finding import Findings
from tests.fake_pooler import fake_pooler
from tests.support import another_session

pytestmark = pytest.mark.integration


async def connection_findings(database: Database) -> dict[str, Finding]:
    checks = [check for check in CHECKS if check.group == "connection"]
    return {each.check: each for each in await run_checks(database, Settings(), checks=checks)}


async def test_direct_connection_has_no_findings(database: Database) -> None:
    found = await connection_findings(database)
    assert {name: each.level for name, each in found.items()} == dict.fromkeys(("pooler", "listen", "clock"), Level.OK)
    assert found["pooler"].says == "no pooler"


async def test_pooler_in_transaction_mode_is_a_problem(database: Database) -> None:
    async with fake_pooler(database.url) as url:
        findings = await run_checks(replace(database, url=url), Settings())
    found = {f"{each.group}.{each.check}": each for each in findings}
    assert found["connection.pooler"].level is Level.PROBLEM
    assert found["connection.pooler"].about == "transaction mode"
    assert "bypasses the pooler" in (found["connection.pooler"].do or "")
    assert found["connection.listen"].level is Level.PROBLEM
    # No shared session was left listening, and the other checks ran through the pooler.
    assert found["schema.objects"].level is Level.OK
    assert found["work.schedules"].level is Level.OK
    assert (await connection_findings(database))["pooler"].level is Level.OK


async def test_pooler_in_session_mode_is_ok(database: Database) -> None:
    async with fake_pooler(database.url, shared=False) as url:
        found = await connection_findings(replace(database, url=url))
    assert found["pooler"].level is Level.OK
    assert found["pooler"].says == "a pooler in session mode"
    assert found["listen"].level is Level.OK


async def test_direct_url_past_a_pooler_has_no_findings(database: Database) -> None:
    async with fake_pooler(database.url) as url:
        found = await connection_findings(replace(database, url=url, direct_url=database.url))
    assert {name: each.level for name, each in found.items()} == dict.fromkeys(("pooler", "listen", "clock"), Level.OK)


async def test_direct_url_to_another_database_is_a_problem(database: Database, fresh_database_url: str) -> None:
    found = await connection_findings(replace(database, direct_url=fresh_database_url))
    assert (found["pooler"].level, found["pooler"].about) == (Level.PROBLEM, "direct URL")


async def test_lost_notifications_are_a_problem(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("awa_py.doctor.connectivity.ROUND_TRIP_S", 0.2)
    async with fake_pooler(database.url, shared=False, drop_notifications=True) as url:
        found = await connection_findings(replace(database, url=url))
    assert found["pooler"].level is Level.OK
    assert found["listen"].level is Level.PROBLEM
    assert "did not arrive" in found["listen"].says


async def test_doctor_leaves_no_listener_behind(database: Database) -> None:
    await run_checks(database, Settings())
    async with another_session(database) as session:
        assert await session.connection.fetch("SELECT pg_listening_channels()") == []


@pytest.mark.parametrize("wrong_s", [-120.0, 0.0, 120.0])
async def test_clock_skew_is_measured(connection: Connection, wrong_s: float) -> None:
    offset_s, uncertainty_s = await measure_skew(connection, lambda: time.time() + wrong_s)
    assert offset_s == pytest.approx(-wrong_s, abs=5)
    assert 0 <= uncertainty_s < 5


@pytest.mark.parametrize(
    ("offset_s", "uncertainty_s", "level", "text"),
    [
        (0.5, 0.0, Level.OK, "within 500.0 ms"),
        (3.0, 2.5, Level.OK, "within"),  # the round trip was too slow to tell
        (3.0, 0.1, Level.WARNING, "3.0 s behind"),
        (-3.0, 0.1, Level.WARNING, "3.0 s ahead of"),
        (-90.0, 0.1, Level.PROBLEM, "90.0 s ahead of"),
    ],
)
def test_clock_offset_has_a_level(offset_s: float, uncertainty_s: float, level: Level, text: str) -> None:
    findings = Findings("connection", "clock")
    evaluate_clock(offset_s, uncertainty_s, findings)
    (finding,) = findings.found
    assert finding.level is level
    assert text in finding.says
