"""The pages about failures, security and durable jobs name tests, faults, metrics, settings and more that exist.

And the pages for operators name every maintenance task and every reason of a failed attempt.
"""

import re
from pathlib import Path

import pytest

from awa_py.doctor.runner import CHECKS
from awa_py.maintenance.tasks import all_tasks
from awa_py.observability.metrics import Metrics, Reason
from awa_py.settings import Settings
from tests.chaos.faults import ALL
from tests.metric_specs import labels_by_series

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FAILURES = (DOCS / "failures.md").read_text()
SECURITY = (DOCS / "security.md").read_text()
DURABLE = (DOCS / "durable.md").read_text()
MONITORING = (DOCS / "monitoring.md").read_text()
TASKS = [task.name for task in all_tasks(Settings(), [], Metrics())]


@pytest.mark.parametrize("page", [FAILURES, SECURITY, DURABLE], ids=["failures", "security", "durable"])
def test_every_named_test_exists(page: str) -> None:
    sources = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", page))
    assert len(named) > 20
    assert named - set(re.findall(r"def (test_\w+)", sources)) == set()


def test_failures_page_has_the_faults_of_the_seeded_runs() -> None:
    lists = re.findall(r"faults?: ([^|;]+) \|", FAILURES)
    named = {name for text in lists for name in text.split(", ")}
    similar = {"freeze all processes", "terminate sessions"}  # to others, which are named
    assert named == {fault.name for fault in ALL} - similar


def test_failures_page_names_existing_alerts_metrics_settings_and_checks() -> None:
    alerts = set(re.findall(r"\bAwa[A-Z]\w+", FAILURES))
    assert alerts - set(re.findall(r"^### (\w+)$", MONITORING, re.MULTILINE)) == set()
    metrics = set(re.findall(r"`(awa_\w+)", FAILURES))
    assert metrics - {name.removesuffix("_bucket") for name in labels_by_series()} == set()
    settings = set(re.findall(r"\bAWA_[A-Z_]+\b", FAILURES + SECURITY))
    assert settings - set(re.findall(r"\bAWA_[A-Z_]+\b", (DOCS / "settings.md").read_text())) == set()
    checks = set(re.findall(r"doctor, `(\w+)`", FAILURES))
    assert checks - {check.name for check in CHECKS} == set()
    assert min(map(len, (alerts, metrics, settings, checks))) > 10


def test_monitoring_page_lists_every_task_and_reason() -> None:
    listed = MONITORING.split("`task` is one of the leader's tasks: ")[1].partition(".")[0]
    assert re.split(r",\s+", listed) == TASKS
    table = MONITORING.split("| reason | |")[1].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)`", table, re.MULTILINE) == list(Reason)


def test_operations_page_lists_every_task_that_can_run_once() -> None:
    table = (DOCS / "operations.md").read_text().split("| task, method | report |")[1].partition("\n\n")[0]
    first_cells = re.findall(r"^\| (`.+?) \|", table, re.MULTILINE)
    assert {name for cell in first_cells for name in re.findall(r"`([a-z-]+)`", cell)} == {*TASKS} - {"check"}
