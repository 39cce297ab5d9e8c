"""Plant each mistake, run its tests, and print which mistakes no test noticed.

`python -m tests.mutants` plants all, `python -m tests.mutants NAME …` only those.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path

from awa_py.embedded import EmbeddedPostgres
from tests.mutants.catalog import MUTANTS
from tests.mutants.mutant import Mutant

ROOT = Path(__file__).parents[2]
IGNORED = shutil.ignore_patterns(".*", "*.egg-info", "__pycache__", "build", "dist")
TIMEOUT_S = 120
TESTS_FAILED = 1  # pytest's exit code


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
        except subprocess.TimeoutExpired:  # the tests hang: noticed, too
            return TESTS_FAILED, ""
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


def main(names: Sequence[str]) -> int:
    mutants = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    if unknown := set(names) - {mutant.name for mutant in MUTANTS}:
        sys.exit(f"unknown: {', '.join(sorted(unknown))}")
    survivors = []
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
            if exit_code == 0:
                survivors.append(mutant)
            verdict = "SURVIVED" if exit_code == 0 else "noticed"
            print(f"{verdict:8}  {time.monotonic() - began:5.1f} s  {mutant.name} ({mutant.file})", flush=True)
    print(f"{len(mutants)} mistakes planted, {len(survivors)} survived")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
