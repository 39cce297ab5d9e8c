"""The peers' own installations, under .bench/: a virtual environment for each from pip, one folder for those from npm.

Made once, and again when the pins change. What cannot be installed here is skipped, with a sentence.
"""

import hashlib
import json
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from tests.bench.peers.entrants import Entrant

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
BENCH = ROOT / ".bench"
PINS = HERE / "pins"
NODE = BENCH / "node"
OLDEST_NODE = 20
INSTALL_TIMEOUT_S = 600


class Unavailable(Exception):
    """Why a contender cannot take part here."""


def prepare(entrant: Entrant) -> None:
    """Installs what the contender needs, unless it is there; raises Unavailable."""
    try:
        if entrant.runtime == "pip":
            _prepare_pip(entrant.package)
        elif entrant.runtime == "npm":
            _prepare_npm()
    except subprocess.CalledProcessError as error:
        last = (error.stderr or error.stdout or "").strip().splitlines()[-1:]
        raise Unavailable(f"{entrant.label} is skipped: it could not be installed ({' '.join(last)})") from error
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{entrant.label} is skipped: installing it took over {INSTALL_TIMEOUT_S} s") from error


def python_of(entrant: Entrant) -> str:
    return str(BENCH / entrant.package / "bin" / "python") if entrant.runtime == "pip" else sys.executable


def pinned_version(entrant: Entrant) -> str:
    """As the pins say; the others are of this tree."""
    if entrant.runtime == "npm":
        return str(json.loads((PINS / "package.json").read_text())["dependencies"][entrant.package])
    if entrant.runtime == "pip":
        return (PINS / f"{entrant.package}.txt").read_text().splitlines()[0].partition("==")[2]
    return ""


def _prepare_pip(package: str) -> None:
    pins, home = PINS / f"{package}.txt", BENCH / package
    if _is_current(home, pins):
        return
    shutil.rmtree(home, ignore_errors=True)
    venv.create(home, with_pip=True)
    _run(str(home / "bin" / "pip"), "install", "--quiet", "--requirement", str(pins))
    _mark(home, pins)


def _prepare_npm() -> None:
    node = shutil.which("node")
    if node is None or shutil.which("npm") is None:
        raise Unavailable("graphile-worker and pg-boss are skipped: there is no Node here")
    version = _run(node, "--version").strip()
    if int(version.lstrip("v").split(".")[0]) < OLDEST_NODE:
        raise Unavailable(f"graphile-worker and pg-boss are skipped: they need Node {OLDEST_NODE}, this is {version}")
    pins = PINS / "package.json"
    if _is_current(NODE, pins):
        return
    shutil.rmtree(NODE, ignore_errors=True)
    NODE.mkdir(parents=True)
    shutil.copy(pins, NODE / "package.json")
    _run("npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--prefix", str(NODE))
    _mark(NODE, pins)


def _run(*command: str) -> str:
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S)
    return done.stdout


def _is_current(home: Path, pins: Path) -> bool:
    mark = home / "installed"
    return mark.is_file() and mark.read_text() == _digest(pins)


def _mark(home: Path, pins: Path) -> None:
    (home / "installed").write_text(_digest(pins))


def _digest(pins: Path) -> str:
    return hashlib.sha256(pins.read_bytes()).hexdigest()
