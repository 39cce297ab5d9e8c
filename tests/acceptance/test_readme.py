"""The README's tour works as it is written, in the README's own set-up."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.conftest import Awa
from tests.support import eventually

pytestmark = pytest.mark.integration

README = Path(__file__).parents[2] / "README.md"
SETUP = {"AWA_EMBEDDED_DIR": "./awa-data"}
MANY, FEW = "100_000", "100"


def example(contains: str) -> str:
    """Return the one Python example of the README that contains this."""
    (found,) = (code for code in re.findall(r"```python\n(.*?)```", README.read_text(), re.S) if contains in code)
    return str(found)


@pytest.mark.parametrize("with_worker", [False, True], ids=["without a worker", "with a worker"])
async def test_example_in_python_runs(bare_awa: Awa, with_worker: bool) -> None:
    (bare_awa.directory / "tasks.py").write_text(example("async def greet"))
    program = example("asyncio.run(main())")
    assert MANY in program
    (bare_awa.directory / "program.py").write_text(program.replace(MANY, FEW))
    worker = bare_awa.start("worker", "tasks:app", "-q", "default", env=SETUP) if with_worker else None
    try:
        if worker is not None:
            await eventually(lambda: bare_awa.ok("workers", "--json", env=SETUP).json)
        ran = subprocess.run(
            [sys.executable, "program.py"],
            cwd=bare_awa.directory,
            env={**bare_awa.environ, **SETUP},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (ran.returncode, ran.stdout.replace("tick\n", "")) == (0, "Hello, you\nFalse\n"), ran.stderr
    finally:
        if worker is not None:
            worker.terminate()
            worker.communicate()
