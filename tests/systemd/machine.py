"""A container with its own systemd, on an overlay of the host's files that is discarded at the end.

It uses the host's network, so that the tests' PostgreSQL has its usual address.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import psutil

ROOT = Path(__file__).parents[2]
VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
PYTHON = Path("/usr/bin") / VERSION  # readable by every user and not hidden by the sandbox
PACKAGES = "AWA_TEST_SYSTEMD_PACKAGES"  # a directory of .deb files with another version of systemd
BOOT_S = 120.0
BOOT_TARGET = """[Unit]
Requires=basic.target
After=basic.target
AllowIsolate=yes
"""
TASKS = """
import asyncio, time
import awa_py as awa

app = awa.App()


@app.job
async def nap(seconds: float) -> None:
    await asyncio.sleep(seconds)


@app.job
async def block(seconds: float) -> None:
    time.sleep(seconds)


@app.job
def inspect_sandbox() -> dict:
    import getpass, os
    def can_write(path):
        try:
            open(path + "/awa-test", "w").close()
            return True
        except OSError:
            return False
    return {
        "user": getpass.getuser(),
        "writes": [path for path in ("/etc", "/usr", "/var/lib/awa", "/tmp") if can_write(path)],
        "sees_notify_socket": "NOTIFY_SOCKET" in os.environ,
    }
"""


class Machine:
    """The container: runs commands in it, and writes files to it from outside."""

    def __init__(self, root: Path, init: psutil.Process) -> None:
        self.root = root
        self._init = init

    def run(self, *command: str, check: bool = True) -> str:
        """Run a command and return its output, including stderr."""
        done = subprocess.run(
            ["nsenter", "--all", f"--target={self._init.pid}", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            check=False,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "SYSTEMD_COLORS": "0"},
            timeout=120,
        )
        assert not check or done.returncode == 0, f"{' '.join(command)}: {done.stdout}"
        return done.stdout

    def write(self, path: str, text: str) -> None:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


class Unit:
    """One instance of the worker or maintenance unit."""

    def __init__(self, machine: Machine, name: str, env_file: str) -> None:
        self._machine = machine
        self._env_file = env_file
        self.name = name

    def settings(self, **variables: str) -> None:
        self._machine.write(self._env_file, "".join(f'{name}="{value}"\n' for name, value in variables.items()))
        self._machine.run("systemd-tmpfiles", "--create", "/etc/tmpfiles.d/awa.conf")

    def drop_in(self, **keys: str) -> None:
        lines = "".join(f"{key}={value}\n" for key, value in keys.items())
        self._machine.write(f"/etc/systemd/system/{self.name}.d/test.conf", f"[Service]\n{lines}")
        self._machine.run("systemctl", "daemon-reload")

    def systemctl(self, verb: str, *options: str, check: bool = True) -> str:
        return self._machine.run("systemctl", verb, *options, self.name, check=check)

    def show(self, key: str) -> str:
        return self._machine.run("systemctl", "show", "--property", key, "--value", self.name).strip()

    def send(self, number: signal.Signals) -> None:
        self._machine.run("systemctl", "kill", "--kill-who=main", f"--signal={number.name}", self.name)

    @property
    def pid(self) -> int:
        return int(self.show("MainPID"))

    @property
    def state(self) -> str:
        return self.show("ActiveState")

    @property
    def status(self) -> str:
        return self.show("StatusText")

    @property
    def restarts(self) -> int:
        return int(self.show("NRestarts"))

    @property
    def journal(self) -> str:
        return self._machine.run("journalctl", "--no-pager", "--output=cat", "--unit", self.name)


@contextmanager
def booted(directory: Path) -> Iterator[Machine]:
    """Boot a machine with awa in /opt/awa, an app in /srv/app, and the units installed."""
    with _overlay(directory) as root:
        _install_awa(root)
        with _nspawn(root, directory / "console.log") as init:
            machine = Machine(root, init)
            _wait_for_boot(machine)
            machine.run("/opt/awa/bin/awa", "systemd", "install")
            machine.run("systemd-sysusers", "/etc/sysusers.d/awa.conf")
            machine.run("systemd-tmpfiles", "--create", "/etc/tmpfiles.d/awa.conf")
            machine.run("systemctl", "daemon-reload")
            yield machine


@contextmanager
def _overlay(directory: Path) -> Iterator[Path]:
    """Mount an overlay: the host's root, with writes going to memory."""
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", directory], check=True)
    try:
        upper, work, root = (directory / name for name in ("upper", "work", "root"))
        for each in (upper, work, root):
            each.mkdir()
        layers = f"lowerdir=/,upperdir={upper},workdir={work}"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, root], check=True)
        try:
            yield root
        finally:
            subprocess.run(["umount", "--lazy", root], check=True)
    finally:
        subprocess.run(["umount", "--lazy", directory], check=True)


def _install_awa(root: Path) -> None:
    """Install awa as a wheel would, and mask the host's own services."""
    for package in sorted(Path(os.environ.get(PACKAGES, "/nowhere")).glob("*.deb")):
        files = subprocess.run(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE, check=True).stdout
        subprocess.run(["tar", "-x", "--keep-directory-symlink", "-C", root], input=files, check=True)
    source = root.parent / "source"
    for name in ("awa_py", "cli", "monitoring", "schema", "systemd"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    home = root / "opt" / "awa"
    subprocess.run([PYTHON, "-m", "venv", "--without-pip", "--symlinks", home], check=True)
    packages = home / "lib" / VERSION / "site-packages"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", packages, source], check=True
    )
    (packages / "dependencies.pth").write_text("/opt/dependencies\n")
    (home / "bin" / "awa").write_text("#!/opt/awa/bin/python\nfrom awa_cli.main import main\nmain()\n")
    (home / "bin" / "awa").chmod(0o755)
    for path, text in {
        "opt/dependencies/here": "",
        "srv/app/tasks.py": TASKS,
        "etc/fstab": "",
        "etc/systemd/system/awa-test.target": BOOT_TARGET,
        "etc/systemd/network/empty": "",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    for name in ("networking", "ifupdown-pre", "systemd-networkd-wait-online", "NetworkManager-wait-online"):
        unit = root / "etc/systemd/system" / f"{name}.service"
        unit.unlink(missing_ok=True)
        unit.symlink_to("/dev/null")


@contextmanager
def _nspawn(root: Path, console: Path) -> Iterator[psutil.Process]:
    dependencies = Path(psutil.__file__).parents[1]
    command = [
        *("systemd-nspawn", "--boot", "--quiet", "--register=no", "--keep-unit", "--link-journal=no", "--console=pipe"),
        *(f"--directory={root}", f"--machine=awa-{uuid4().hex[:8]}", f"--bind-ro={dependencies}:/opt/dependencies"),
        "systemd.unit=awa-test.target",
    ]
    with console.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            yield _wait_for_init(process.pid)
        finally:
            process.send_signal(signal.SIGTERM)  # nspawn then powers the machine off
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_for_init(pid: int) -> psutil.Process:
    """Return the machine's first process once it is systemd."""
    deadline = time.monotonic() + BOOT_S
    while time.monotonic() < deadline:
        for child in psutil.Process(pid).children():
            if "systemd" in child.name() and os.path.basename(child.exe()) == "systemd":
                return child
        time.sleep(0.1)
    raise AssertionError("systemd-nspawn did not start systemd")


def _wait_for_boot(machine: Machine) -> None:
    deadline = time.monotonic() + BOOT_S
    state = ""
    while time.monotonic() < deadline:
        state = machine.run("systemctl", "is-system-running", check=False).strip()
        if state in ("running", "degraded"):
            return
        time.sleep(0.3)
    raise AssertionError(f"the machine did not boot: {state}\n{machine.run('systemctl', '--failed', check=False)}")
