"""mypy and pyright accept the correct uses in `uses.py`, and report the wrong ones."""

import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
USES = ROOT / "tests/typing/uses.py"
EXPECTATION = re.compile(r"# error: (.+)$")

Messages = dict[int, list[str]]  # by line number


def run(*command: str) -> str:
    # Not the exit code: errors are expected.
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300).stdout


def mypy() -> Messages:
    command = ("-m", "mypy", "--strict", "--follow-imports=silent", "--no-pretty", "--output=json", str(USES))
    found: Messages = defaultdict(list)
    for line in run(sys.executable, *command).splitlines():
        report = json.loads(line)
        if report["severity"] == "error":
            found[report["line"]].append(report["message"])
    return found


def pyright(config: Path) -> Messages:
    pytest.importorskip("basedpyright", reason="basedpyright, which has pyright's checks, is not installed")
    # pyright's own rules, not the stricter ones that basedpyright adds.
    settings = {"include": [str(USES)], "extraPaths": [str(ROOT)], "typeCheckingMode": "standard"}
    config.write_text(json.dumps({**settings, "pythonVersion": "3.11"}))
    command = ("-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable, "--project", str(config))
    output = run(sys.executable, *command)
    found: Messages = defaultdict(list)
    for report in json.loads(output)["generalDiagnostics"]:
        found[report["range"]["start"]["line"] + 1].append(report["message"])
    return found


def expectations() -> dict[int, str]:
    lines = enumerate(USES.read_text().splitlines(), 1)
    return {number: found[1] for number, line in lines if (found := EXPECTATION.search(line))}


def differences(found: Messages) -> list[str]:
    """Return a line for each wrong use that was accepted, and for each unexpected message."""
    expected = expectations()
    accepted = [
        f"line {number}: expected an error with {text!r}, found {found.get(number, 'none')}"
        for number, text in expected.items()
        if not any(text.lower() in message.lower() for message in found.get(number, []))
    ]
    unexpected = [f"line {number}: {messages}" for number, messages in found.items() if number not in expected]
    return accepted + unexpected


def test_mypy_reports_exactly_the_wrong_uses() -> None:
    assert differences(mypy()) == []


def test_pyright_reports_exactly_the_wrong_uses(tmp_path: Path) -> None:
    assert differences(pyright(tmp_path / "pyrightconfig.json")) == []


def test_accepted_wrong_use_is_a_difference() -> None:
    everything = {number: [text] for number, text in expectations().items()}
    assert differences(everything) == []
    first = next(iter(everything))
    assert len(differences({**everything, first: []})) == 1
    assert len(differences({**everything, first: ["another message"]})) == 1
    assert len(differences({**everything, 1: ["an error in a correct line"]})) == 1
