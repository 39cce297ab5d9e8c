"""The unit files: their content, their adaptation, and systemd's verdict."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from awa_py.errors import ConfigError
from awa_py.systemd.units import UNIT_TEMPLATES, UnitFile, WriteResult, command_problems, install, unit_files

ROOT = Path(__file__).parents[2]
SANDBOX = re.compile(r"(NoNew|Cap|Ambient|Protect|Private|Remove|Lock|Restrict[ANRS]|SystemCall)\w*=.*")
needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs systemd-analyze (package systemd)"
)


def adapted(
    base: Path, *, for_user: bool = False, command: str = "/bin/true", version: int = 252
) -> dict[str, UnitFile]:
    return unit_files(base, for_user=for_user, command=command, version=version)


def analyze(*arguments: str | Path, runtime: Path | None = None) -> str:
    answer = subprocess.run(
        ["systemd-analyze", *map(str, arguments)],
        env=os.environ | ({} if runtime is None else {"XDG_RUNTIME_DIR": str(runtime)}),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout + answer.stderr


def installed_units(base: Path, *, for_user: bool = False) -> list[Path]:
    return [
        path
        for path in install(adapted(base, for_user=for_user), force=False)
        if path.suffix in (".service", ".target")
    ]


@needs_systemd
@pytest.mark.parametrize("for_user", [False, True])
def test_systemd_analyze_accepts_the_units(tmp_path: Path, for_user: bool) -> None:
    scope = ["--user"] if for_user else []
    assert analyze("verify", "--man=no", *scope, *installed_units(tmp_path, for_user=for_user), runtime=tmp_path) == ""


@needs_systemd
def test_units_have_a_low_exposure_level(tmp_path: Path) -> None:
    for unit in installed_units(tmp_path):
        if unit.suffix == ".service":
            answer = analyze("security", "--no-pager", "--offline=true", unit)
            level = re.search(r"exposure level for .*: ([\d.]+)", answer)
            assert level is not None
            assert float(level[1]) <= 2.5


def test_worker_and_maintenance_units_have_the_same_sandbox() -> None:
    worker, leader = (
        SANDBOX.findall((ROOT / "systemd" / UNIT_TEMPLATES[name].source).read_text())
        for name in ("worker", "maintenance")
    )
    assert len(worker) > 20
    assert worker == leader


def test_units_start_this_installation(tmp_path: Path) -> None:
    files = adapted(tmp_path, command="/opt/awa/bin/awa")
    assert "ExecStart=/opt/awa/bin/awa worker\n" in files["worker"].text
    assert "ExecStart=/opt/awa/bin/awa maintenance\n" in files["maintenance"].text


def test_units_allow_an_installation_in_a_home_directory(tmp_path: Path) -> None:
    assert "ProtectHome=read-only\n" in adapted(tmp_path, command="/home/me/venv/bin/awa")["worker"].text
    assert len(command_problems("/tmp/venv/bin/awa")) > len(command_problems("/opt/awa/bin/awa"))
    assert any("/root/venv/bin/awa can be read only by root" in each for each in command_problems("/root/venv/bin/awa"))


def test_restart_backoff_needs_systemd_254(tmp_path: Path) -> None:
    assert "RestartSteps" not in adapted(tmp_path, version=253)["worker"].text
    newer = adapted(tmp_path, version=254)["worker"].text
    assert "\nRestartSteps=5\nRestartMaxDelaySec=30\n" in newer


def test_user_units_have_no_system_directives(tmp_path: Path) -> None:
    files = adapted(tmp_path, for_user=True)
    assert set(files) == {"worker", "maintenance", "target", "env"}
    assert files["worker"].path == tmp_path / "systemd/user/awa-worker@.service"
    for line in ("User=", "ProtectSystem=", "PrivateTmp=", "LoadCredential=", "/etc/", "network-online"):
        assert line not in files["worker"].text
    assert "NoNewPrivileges=yes\n" in files["worker"].text
    assert "WantedBy=default.target\n" in files["target"].text


def test_second_installation_changes_nothing(tmp_path: Path) -> None:
    assert set(install(adapted(tmp_path), force=False).values()) == {WriteResult.WRITTEN}
    assert set(install(adapted(tmp_path), force=False).values()) == {WriteResult.UNCHANGED}
    assert (tmp_path / "etc/awa/example.env").stat().st_mode & 0o777 == 0o640
    assert not list(tmp_path.rglob("*.new"))


def test_edited_unit_is_not_overwritten_without_force(tmp_path: Path) -> None:
    install(adapted(tmp_path), force=False)
    newer = adapted(tmp_path, command="/opt/awa/bin/awa")
    assert install(newer, force=False)[newer["worker"].path] is WriteResult.UPDATED

    edited = newer["worker"].path
    edited.write_text(edited.read_text().replace("WatchdogSec=60", "WatchdogSec=90"))
    newest = adapted(tmp_path, command="/srv/awa/bin/awa")
    with pytest.raises(ConfigError, match=r"were changed since: .*awa-worker@\.service; move the changes to a drop-in"):
        install(newest, force=False)
    assert "WatchdogSec=90" in edited.read_text()
    assert "/opt/awa" in newer["maintenance"].path.read_text(), "nothing else was written either"

    assert install(newest, force=True)[edited] is WriteResult.UPDATED
    assert "WatchdogSec=60" in edited.read_text()


def test_file_not_written_by_awa_is_not_overwritten(tmp_path: Path) -> None:
    path = adapted(tmp_path)["target"].path
    path.parent.mkdir(parents=True)
    path.write_text("[Unit]\n")
    with pytest.raises(ConfigError, match="were not written by awa"):
        install(adapted(tmp_path), force=False)


def test_example_env_names_existing_variables() -> None:
    """Each variable belongs to an option, a setting, or Python."""
    from awa_py.settings import Settings, variable

    known = {variable(name) for name in Settings.__dataclass_fields__}
    options = "".join(path.read_text() for path in (ROOT / "cli").glob("*.py"))
    for name in re.findall(r"^#?([A-Z_]+)=", (ROOT / "systemd/example.env").read_text(), re.MULTILINE):
        assert name in known or f'"{name}"' in options or name == "PYTHONPATH", name
