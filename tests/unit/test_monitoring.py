"""The alert rules and the dashboard use existing metrics, and are documented."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.metric_specs import all_metrics, labels_by_series

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "monitoring"
RULES = (FOLDER / "awa.rules.yml").read_text()
CASES = (FOLDER / "awa.rules.test.yml").read_text()
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text())
PAGE = (ROOT / "docs" / "monitoring.md").read_text()

SCRAPE_LABELS = {"job", "instance", "process"}  # added by the scrape, and by the supervisor of several processes
OTHER_METRICS = {"up", "process_resident_memory_bytes", "process_cpu_seconds_total"}
ALERTS = re.findall(r"- alert: (\w+)", RULES)
EXPRESSIONS = re.findall(r"^ +expr: (.+)$", RULES, re.MULTILINE)

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed: Debian's package prometheus"
)


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def queries() -> Iterator[str]:
    for panel in panels():
        yield from (target["expr"] for target in panel["targets"])
    for variable in DASHBOARD["templating"]["list"][1:]:
        yield re.sub(r"label_values\((.+), (\w+)\)", r"count by (\2) (\1)", variable["definition"])


def check(expression: str) -> None:
    """Assert that every series of the expression exists, and every label that it filters or groups by."""
    known = labels_by_series()
    used = re.findall(r"\b((?:awa|process)_\w+|up)\b(?:\{([^}]*)\})?", expression)
    used = [(name, selectors) for name, selectors in used if name not in SCRAPE_LABELS]
    assert used, expression
    allowed: set[str] = set()
    for name, selectors in used:
        assert name in known or name in OTHER_METRICS, f"{name} in {expression}"
        labels = known.get(name, set()) | SCRAPE_LABELS
        assert set(re.findall(r"(\w+)(?:=|!)", selectors)) <= labels, expression
        allowed |= labels
    for grouped in re.findall(r"\b(?:by|on|without) \(([^)]*)\)", expression):
        assert set(re.split(r", *", grouped)) <= allowed, expression


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_alert_queries_existing_metrics(expression: str) -> None:
    check(expression)


@pytest.mark.parametrize("expression", list(queries()))
def test_dashboard_queries_existing_metrics(expression: str) -> None:
    check(expression)


@pytest.mark.parametrize("wrong", ["awa_nothing", 'awa_is_leader{queue="a"}', "sum by (kind) (awa_workers)"])
def test_check_rejects_unknown_metrics_and_labels(wrong: str) -> None:
    with pytest.raises(AssertionError):
        check(wrong)


def test_each_alert_has_a_severity_and_a_description() -> None:
    assert len(ALERTS) == len(set(ALERTS)) == len(EXPRESSIONS) > 15
    for block in RULES.split("- alert: ")[1:]:
        name = block.split()[0]
        assert re.search(r"severity: (critical|warning)\n", block), name
        assert re.search(r'summary: ".+"\n', block), name
        assert re.search(r'description: ".+"\n', block), name
        assert f"runbook_url: docs/monitoring.md#{name.lower()}\n" in block
        assert f"\n### {name}\n" in PAGE


def test_each_alert_has_a_test_that_fires_and_stops() -> None:
    for name in ALERTS:
        (case,) = [case for case in CASES.split("  - name: ") if case.startswith(f"{name}\n")]
        assert re.findall(r"exp_samples:(.*)", case) == [" []", "", " []"]


@needs_promtool
@pytest.mark.parametrize("command", ["check rules awa.rules.yml", "test rules awa.rules.test.yml"])
def test_promtool_accepts_the_rules(command: str) -> None:
    answer = subprocess.run(["promtool", *command.split()], cwd=FOLDER, capture_output=True, text=True, timeout=60)
    assert answer.returncode == 0, answer.stdout + answer.stderr


@needs_promtool
def test_promtool_accepts_the_dashboard_queries(tmp_path: Path) -> None:
    plain = [expression.replace("$__rate_interval", "1m") for expression in queries()]
    recorded = [{"record": f"query_{n}", "expr": expression} for n, expression in enumerate(plain)]
    rules = {"groups": [{"name": "dashboard", "rules": recorded}]}
    (tmp_path / "rules.yml").write_text(json.dumps(rules))
    answer = subprocess.run(
        ["promtool", "check", "rules", str(tmp_path / "rules.yml")], capture_output=True, text=True, timeout=60
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_dashboard_panels_do_not_overlap() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells
    for panel in panels():
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["title"]
        assert panel["targets"]
    assert [variable["name"] for variable in DASHBOARD["templating"]["list"]] == [
        "datasource",
        "job",
        "instance",
        "queue",
    ]


def test_each_metric_is_used_by_the_dashboard_or_an_alert() -> None:
    used = " ".join([*queries(), *EXPRESSIONS])
    assert [
        metric.name for metric in all_metrics() if not re.search(rf"\b{metric.name}\b|\b{metric.name}_", used)
    ] == []


def test_documentation_lists_exactly_the_metrics() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `awa_")]
    assert sorted(row.split("|")[1] for row in rows) == sorted(f" `{metric.name}` " for metric in all_metrics())
    for metric in all_metrics():
        assert f"| `{metric.name}` | {metric.type} | {', '.join(metric.labels)} | {metric.help} |" in rows


def test_documentation_lists_exactly_the_alerts() -> None:
    assert re.findall(r"^### (Awa\w+)$", PAGE, re.MULTILINE) == ALERTS
