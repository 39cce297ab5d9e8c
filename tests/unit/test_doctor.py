"""Findings of `awa doctor` for values that a test cannot create quickly in a real database."""

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
    truncated=False,
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
def findings() -> Findings:
    return Findings("group", "check")


def levels(findings: Findings) -> list[Level]:
    return [finding.level for finding in findings.found]


def test_check_names_are_unique() -> None:
    names = [(check.group, check.name) for check in CHECKS]
    assert len(set(names)) == len(names)


def test_ok_is_ignored_after_another_finding(findings: Findings) -> None:
    findings.warning("it", "is so", "do")
    findings.ok("fine")
    assert levels(findings) == [Level.WARNING]


@pytest.mark.parametrize(
    ("change", "level"),
    [
        ({}, None),
        ({"dead": 2_000_000}, None),  # many jobs per second, vacuumed a minute ago
        ({"dead": 15_000, "since_vacuum_s": None}, None),  # autovacuum will run soon
        ({"dead": 25_000, "since_vacuum_s": None}, Level.WARNING),
        ({"dead": 25_000, "since_vacuum_s": 3600.0}, Level.WARNING),
        ({"dead": 2_000_000, "since_vacuum_s": 3600.0}, Level.PROBLEM),
        ({"bytes": 300 * MIB}, Level.WARNING),
        ({"bytes": 300 * MIB, "live": 1_000_000}, None),
        ({"bytes": 300 * MIB, "live": 0, "counted": False}, None),  # statistics are lost after a crash
        ({"index_bytes": 300 * MIB}, Level.WARNING),
        ({"autovacuum": False}, Level.PROBLEM),
    ],
)
def test_table_health_has_a_level(findings: Findings, change: dict[str, object], level: Level | None) -> None:
    evaluate_tables([replace(TABLE, **change)], Schema("My Jobs"), findings)  # type: ignore[arg-type]
    assert levels(findings) == ([] if level is None else [level])
    assert all('"My Jobs".ready' in (finding.do or "") for finding in findings.found)


@pytest.mark.parametrize(("truncated", "statement"), [(True, "VACUUM FULL"), (False, "VACUUM (TRUNCATE)")])
def test_large_table_is_shrunk_by_the_mildest_statement(findings: Findings, truncated: bool, statement: str) -> None:
    evaluate_tables([replace(TABLE, bytes=300 * MIB, truncated=truncated)], Schema(), findings)
    (finding,) = findings.found
    assert finding.do is not None
    assert finding.do.startswith(f'{statement} "awa".ready;')


@pytest.mark.parametrize(
    ("change", "level", "about"),
    [
        ({}, Level.OK, None),
        ({"server_used": 89}, Level.WARNING, "the server"),  # 8 of 97
        ({"server_used": 93}, Level.PROBLEM, "the server"),
        ({"server_used": 100}, Level.PROBLEM, "the server"),  # only the reserved ones are left
        ({"role_limit": 12}, Level.PROBLEM, "this role"),
        ({"database_limit": 12}, Level.PROBLEM, "this database"),
        ({"database_limit": 1000}, Level.OK, None),
    ],
)
def test_connection_usage_has_a_level(
    findings: Findings, change: dict[str, int], level: Level, about: str | None
) -> None:
    evaluate_connections(replace(CONNECTIONS, **change), findings)
    assert [(finding.level, finding.about) for finding in findings.found] == [(level, about)]


@pytest.mark.parametrize(
    ("active", "transactions", "level"),
    [(True, 10, None), (True, 5_000_000, Level.WARNING), (False, 10, Level.PROBLEM)],
)
def test_replication_slot_has_a_level(findings: Findings, active: bool, transactions: int, level: Level | None) -> None:
    evaluate_slots([ReplicationSlot(name="standby", active=active, transactions=transactions)], findings)
    assert levels(findings) == ([] if level is None else [level])


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
def test_server_setting_has_a_level(findings: Findings, settings: dict[str, str], level: Level | None) -> None:
    evaluate_settings(settings, Settings(), findings)
    assert levels(findings) == ([] if level is None else [level])


def test_documentation_lists_every_check() -> None:
    page = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text()
    sections = {part.partition("\n")[0].lower(): part for part in page.split("\n## ")[1:]}
    assert [(check.group, check.name) for check in CHECKS] == [
        (group, name) for group, part in sections.items() for name in re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE)
    ]
