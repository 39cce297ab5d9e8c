"""The installations of the peers under .bench/: a virtual environment for each from pip, one folder for those from npm.

They are created once, and again when the pins change. A peer that cannot be installed is skipped with a message.
"""

import hashlib
import json
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterable
from pathlib import Path

from tests.bench.peers.configs import ContenderConfig

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
BENCH = ROOT / ".bench"
PINS = HERE / "pins"
NODE = BENCH / "node"
MIN_NODE_VERSION = 20
INSTALL_TIMEOUT_S = 600


class Unavailable(Exception):
    """The reason why a contender cannot take part."""


def prepare(config: ContenderConfig) -> None:
    """Install the packages of the contender, unless they are installed. Raise Unavailable if that fails."""
    try:
        if config.runtime == "pip":
            _prepare_pip(config.package)
        elif config.runtime == "npm":
            _prepare_npm()
    except subprocess.CalledProcessError as error:
        last = (error.stderr or error.stdout or "").strip().splitlines()[-1:]
        raise Unavailable(f"{config.label} is skipped: it could not be installed ({' '.join(last)})") from error
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{config.label} is skipped: installing it took over {INSTALL_TIMEOUT_S} s") from error


def prepare_all(configs: Iterable[ContenderConfig]) -> dict[str, str]:
    """Install missing packages. Return the names of the contenders that cannot take part, with the reason."""
    skipped = {}
    for config in configs:
        try:
            prepare(config)
        except Unavailable as reason:
            skipped[config.name] = str(reason)
            print(reason, file=sys.stderr)
    return skipped


def python_of(config: ContenderConfig) -> str:
    return str(BENCH / config.package / "bin" / "python") if config.runtime == "pip" else sys.executable


def pinned_version(config: ContenderConfig) -> str:
    """Return the pinned version; a contender without pins is part of this tree."""
    if config.runtime == "npm":
        return str(json.loads((PINS / "package.json").read_text())["dependencies"][config.package])
    if config.runtime == "pip":
        return (PINS / f"{config.package}.txt").read_text().splitlines()[0].partition("==")[2]
    return ""


def _prepare_pip(package: str) -> None:
    pins, home = PINS / f"{package}.txt", BENCH / package
    if _is_current(home, pins):
        return
    shutil.rmtree(home, ignore_errors=True)
    venv.create(home, with_pip=True)
    _run(str(home / "bin" / "pip"), "install", "--quiet", "--requirement", str(pins))
    _mark_installed(home, pins)


def _prepare_npm() -> None:
    node = shutil.which("node")
    if node is None or shutil.which("npm") is None:
        raise Unavailable("graphile-worker and pg-boss are skipped: Node is not installed")
    version = _run(node, "--version").strip()
    if int(version.lstrip("v").split(".")[0]) < MIN_NODE_VERSION:
        raise Unavailable(f"graphile-worker and pg-boss are skipped: they need Node {MIN_NODE_VERSION}, not {version}")
    pins = PINS / "package.json"
    if _is_current(NODE, pins):
        return
    shutil.rmtree(NODE, ignore_errors=True)
    NODE.mkdir(parents=True)
    shutil.copy(pins, NODE / "package.json")
    _run("npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--prefix", str(NODE))
    _mark_installed(NODE, pins)


def _run(*command: str) -> str:
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S)
    return done.stdout


def _is_current(home: Path, pins: Path) -> bool:
    marker = home / "installed"
    return marker.is_file() and marker.read_text() == _digest(pins)


def _mark_installed(home: Path, pins: Path) -> None:
    (home / "installed").write_text(_digest(pins))


def _digest(pins: Path) -> str:
    return hashlib.sha256(pins.read_bytes()).hexdigest()
