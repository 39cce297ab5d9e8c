"""Plant each mistake, run its tests, and print which mistakes no test noticed.

`python -m tests.mutants` plants all and writes docs/mutants.md; `python -m tests.mutants NAME …` plants only those, or
those of an area.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from awa_py.embedded import EmbeddedPostgres
from tests.mutants.catalog import AREAS, MUTANTS
from tests.mutants.mutant import Mutant

ROOT = Path(__file__).parents[2]
IGNORED = shutil.ignore_patterns(".*", "*.egg-info", "__pycache__", "build", "dist")
TIMEOUT_S = 120
TESTS_FAILED = 1  # pytest's exit code
PAGE = ROOT / "docs" / "mutants.md"
INTRODUCTION = """# Planted mistakes

`make mutants` plants each of these mistakes in a copy of the tree, one at a time, runs the tests concerned, and fails
if no test notices one. It takes about 15 minutes, and `make mutants ARGS=guard` plants only those of one area. A run
of all of them writes this page if none survives. `tests/mutants/catalog` has the lines.

| area | mistake | file | noticed by |
|---|---|---|---|"""


class Copy:
    """A copy of the tree whose packages hide the installed ones."""

    def __init__(self, directory: Path, database_url: str) -> None:
        self.root = directory / "tree"
        shutil.copytree(ROOT, self.root, ignore=IGNORED)
        packages = directory / "packages"
        packages.mkdir()
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())
        for name, folder in project["tool"]["setuptools"]["package-dir"].items():
            (packages / name).symlink_to(self.root / folder)
        self._environment = {**os.environ, "PYTHONPATH": str(packages), "AWA_TEST_URL": database_url}

    def run(self, tests: Sequence[str], *, timeout_s: float | None = None) -> tuple[int, str]:
        """Return the exit code and the output of pytest."""
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", *tests]
        try:
            answer = subprocess.run(
                command, cwd=self.root, env=self._environment, capture_output=True, text=True, timeout=timeout_s
            )
        except subprocess.TimeoutExpired:  # no test has failed: a mistake that makes tests slow is not noticed
            return 0, ""
        return answer.returncode, answer.stdout + answer.stderr

    def run_with(self, mutant: Mutant) -> tuple[int, str]:
        """Plant the mistake, run its tests, and remove it again."""
        file = self.root / mutant.file
        original = file.read_text()
        file.write_text(mutant.plant(original))
        try:
            return self.run(mutant.tests, timeout_s=TIMEOUT_S)
        finally:
            file.write_text(original)


def noticed_by(output: str) -> str:
    """Return the test that failed first. An error in a fixture is none: then the mistake breaks more than it should."""
    found = re.search(r"^FAILED (\S+::\w+)", output, re.MULTILINE)
    assert found is not None, output
    return found[1]


def page(notices: Mapping[Mutant, str]) -> str:
    """Return the page that lists all mistakes and the tests that noticed them."""
    rows = [
        f"| {area} | `{mutant.name}` | `{mutant.file}` | `{notices[mutant].removeprefix('tests/')}` |"
        for area, mutants in AREAS.items()
        for mutant in mutants
    ]
    return "\n".join([INTRODUCTION, *rows, ""])


def chosen(names: Sequence[str]) -> list[Mutant]:
    if unknown := set(names) - AREAS.keys() - {mutant.name for mutant in MUTANTS}:
        sys.exit(f"unknown: {', '.join(sorted(unknown))}")
    return [
        mutant
        for area, mutants in AREAS.items()
        for mutant in mutants
        if not names or area in names or mutant.name in names
    ]


def main(names: Sequence[str]) -> int:
    mutants = chosen(names)
    notices: dict[Mutant, str] = {}
    with tempfile.TemporaryDirectory() as directory, EmbeddedPostgres(settings={"fsync": "off"}) as server:
        copy = Copy(Path(directory), server.url)
        exit_code, output = copy.run(sorted({test for mutant in mutants for test in mutant.tests}))
        if exit_code:
            sys.exit(f"the tests fail without a mistake, too:\n{output}")
        for mutant in mutants:
            began = time.monotonic()
            exit_code, output = copy.run_with(mutant)
            if exit_code not in (0, TESTS_FAILED):
                sys.exit(f"{mutant.name}: the tests could not run:\n{output}")
            if exit_code:
                notices[mutant] = noticed_by(output)
            verdict = f"noticed by {notices[mutant]}" if mutant in notices else "SURVIVED"
            print(f"{time.monotonic() - began:5.1f} s  {mutant.name} ({mutant.file}): {verdict}", flush=True)
    survived = len(mutants) - len(notices)
    print(f"{len(mutants)} mistakes planted, {survived} survived")
    if not names and not survived:
        PAGE.write_text(page(notices))
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
