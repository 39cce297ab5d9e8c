"""What `awa doctor` makes of figures that no test can plant in a moment."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from awa_py import Settings
from awa_py.db.schema import Schema
from awa_py.doctor import CHECKS, Level
from awa_py.doctor.finding import Findings
from awa_py.doctor.server import evaluate_connections, evaluate_settings
from awa_py.doctor.vacuum import evaluate_slots, evaluate_tables
from awa_py.store.server import Connections, ReplicationSlot, TableHealth

MIB = 1024**2
TABLE = TableHealth(
    name="ready",
    dead=0,
    live=1_000,
    counted=True,
    bytes=MIB,
    index_bytes=MIB,
    autovacuum=True,
    vacuum_threshold=2_000.0,
    since_vacuum_s=60.0,
)
CONNECTIONS = Connections(
    server_limit=100,
    reserved=3,
    server_used=10,
    database_limit=-1,
    database_used=10,
    role_limit=-1,
    role_used=10,
)


@pytest.fixture
def notes() -> Findings:
    return Findings("group", "check")


def levels(notes: Findings) -> list[Level]:
    return [finding.level for finding in notes.findings]


def test_every_check_has_a_name_of_its_own() -> None:
    names = [(check.group, check.name) for check in CHECKS]
    assert len(set(names)) == len(names)


def test_all_is_well_only_where_nothing_was_found(notes: Findings) -> None:
    notes.warning("it", "is so", "do")
    notes.ok("fine")
    assert levels(notes) == [Level.WARNING]


@pytest.mark.parametrize(
    ("change", "level"),
    [
        ({}, None),
        ({"dead": 2_000_000}, None),  # many jobs a second, and vacuum was here a minute ago
        ({"dead": 15_000, "since_vacuum_s": None}, None),  # autovacuum is about to come
        ({"dead": 25_000, "since_vacuum_s": None}, Level.WARNING),
        ({"dead": 25_000, "since_vacuum_s": 3600.0}, Level.WARNING),
        ({"dead": 2_000_000, "since_vacuum_s": 3600.0}, Level.PROBLEM),
        ({"bytes": 300 * MIB}, Level.WARNING),
        ({"bytes": 300 * MIB, "live": 1_000_000}, None),
        ({"bytes": 300 * MIB, "live": 0, "counted": False}, None),  # after a crash, nobody knows
        ({"index_bytes": 300 * MIB}, Level.WARNING),
        ({"autovacuum": False}, Level.PROBLEM),
    ],
)
def test_tables(notes: Findings, change: dict[str, object], level: Level | None) -> None:
    evaluate_tables([replace(TABLE, **change)], Schema("My Jobs"), notes)  # type: ignore[arg-type]
    assert levels(notes) == ([] if level is None else [level])
    assert all('"My Jobs".ready' in (finding.do or "") for finding in notes.findings)


@pytest.mark.parametrize(
    ("change", "level", "about"),
    [
        ({}, Level.OK, None),
        ({"server_used": 89}, Level.WARNING, "the server"),  # 8 of 97
        ({"server_used": 93}, Level.PROBLEM, "the server"),
        ({"server_used": 100}, Level.PROBLEM, "the server"),  # administrators have the reserved ones
        ({"role_limit": 12}, Level.PROBLEM, "this role"),
        ({"database_limit": 12}, Level.PROBLEM, "this database"),
        ({"database_limit": 1000}, Level.OK, None),
    ],
)
def test_connections(notes: Findings, change: dict[str, int], level: Level, about: str | None) -> None:
    evaluate_connections(replace(CONNECTIONS, **change), notes)
    assert [(finding.level, finding.about) for finding in notes.findings] == [(level, about)]


@pytest.mark.parametrize(
    ("active", "transactions", "level"),
    [(True, 10, None), (True, 5_000_000, Level.WARNING), (False, 10, Level.PROBLEM)],
)
def test_replication_slots(notes: Findings, active: bool, transactions: int, level: Level | None) -> None:
    evaluate_slots([ReplicationSlot(name="standby", active=active, transactions=transactions)], notes)
    assert levels(notes) == ([] if level is None else [level])


@pytest.mark.parametrize(
    ("settings", "level"),
    [
        ({}, None),
        ({"fsync": "on", "statement_timeout": "0", "idle_session_timeout": "0"}, None),
        ({"full_page_writes": "off"}, Level.PROBLEM),
        ({"track_counts": "off"}, Level.PROBLEM),
        ({"transaction_timeout": "1000"}, Level.WARNING),
        ({"transaction_timeout": "600000"}, None),
        ({"idle_session_timeout": "60000"}, None),
    ],
)
def test_settings(notes: Findings, settings: dict[str, str], level: Level | None) -> None:
    evaluate_settings(settings, Settings(), notes)
    assert levels(notes) == ([] if level is None else [level])


def test_every_check_is_on_its_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text()
    sections = {part.partition("\n")[0].lower(): part for part in page.split("\n## ")[1:]}
    assert [(check.group, check.name) for check in CHECKS] == [
        (group, name) for group, part in sections.items() for name in re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE)
    ]
