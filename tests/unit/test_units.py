"""The unit files: what is in them, how they are made to fit, and what systemd thinks of them."""

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
    shutil.which("systemd-analyze") is None, reason="needs systemd-analyze, of the package systemd"
)


def made(base: Path, *, for_user: bool = False, command: str = "/bin/true", version: int = 252) -> dict[str, UnitFile]:
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


def written(base: Path, *, for_user: bool = False) -> list[Path]:
    return [
        path for path in install(made(base, for_user=for_user), force=False) if path.suffix in (".service", ".target")
    ]


@needs_systemd
@pytest.mark.parametrize("for_user", [False, True])
def test_systemd_has_nothing_to_say_about_them(tmp_path: Path, for_user: bool) -> None:
    whose = ["--user"] if for_user else []
    assert analyze("verify", "--man=no", *whose, *written(tmp_path, for_user=for_user), runtime=tmp_path) == ""


@needs_systemd
def test_they_are_confined(tmp_path: Path) -> None:
    for unit in written(tmp_path):
        if unit.suffix == ".service":
            answer = analyze("security", "--no-pager", "--offline=true", unit)
            level = re.search(r"exposure level for .*: ([\d.]+)", answer)
            assert level is not None
            assert float(level[1]) <= 2.5


def test_worker_and_leader_are_confined_alike() -> None:
    worker, leader = (
        SANDBOX.findall((ROOT / "systemd" / UNIT_TEMPLATES[name].source).read_text())
        for name in ("worker", "maintenance")
    )
    assert len(worker) > 20
    assert worker == leader


def test_they_start_this_awa(tmp_path: Path) -> None:
    files = made(tmp_path, command="/opt/awa/bin/awa")
    assert "ExecStart=/opt/awa/bin/awa worker\n" in files["worker"].text
    assert "ExecStart=/opt/awa/bin/awa maintenance\n" in files["maintenance"].text


def test_an_awa_in_somebodys_home_can_be_seen(tmp_path: Path) -> None:
    assert "ProtectHome=read-only\n" in made(tmp_path, command="/home/me/venv/bin/awa")["worker"].text
    assert len(command_problems("/tmp/venv/bin/awa")) > len(command_problems("/opt/awa/bin/awa"))
    assert any(
        "/root/venv/bin/awa can be read by root alone" in each for each in command_problems("/root/venv/bin/awa")
    )


def test_a_backoff_where_systemd_knows_it(tmp_path: Path) -> None:
    assert "RestartSteps" not in made(tmp_path, version=253)["worker"].text
    newer = made(tmp_path, version=254)["worker"].text
    assert "\nRestartSteps=5\nRestartMaxDelaySec=30\n" in newer


def test_a_user_has_units_without_what_only_the_system_can_do(tmp_path: Path) -> None:
    files = made(tmp_path, for_user=True)
    assert set(files) == {"worker", "maintenance", "target", "env"}
    assert files["worker"].path == tmp_path / "systemd/user/awa-worker@.service"
    for line in ("User=", "ProtectSystem=", "PrivateTmp=", "LoadCredential=", "/etc/", "network-online"):
        assert line not in files["worker"].text
    assert "NoNewPrivileges=yes\n" in files["worker"].text
    assert "WantedBy=default.target\n" in files["target"].text


def test_a_second_installation_changes_nothing(tmp_path: Path) -> None:
    assert set(install(made(tmp_path), force=False).values()) == {WriteResult.WRITTEN}
    assert set(install(made(tmp_path), force=False).values()) == {WriteResult.UNCHANGED}
    assert (tmp_path / "etc/awa/example.env").stat().st_mode & 0o777 == 0o640
    assert not list(tmp_path.rglob("*.new"))


def test_what_awa_wrote_is_updated_and_what_somebody_edited_is_not(tmp_path: Path) -> None:
    install(made(tmp_path), force=False)
    newer = made(tmp_path, command="/opt/awa/bin/awa")
    assert install(newer, force=False)[newer["worker"].path] is WriteResult.UPDATED

    edited = newer["worker"].path
    edited.write_text(edited.read_text().replace("WatchdogSec=60", "WatchdogSec=90"))
    newest = made(tmp_path, command="/srv/awa/bin/awa")
    with pytest.raises(ConfigError, match=r"changed since: .*awa-worker@\.service; move the changes to a drop-in"):
        install(newest, force=False)
    assert "WatchdogSec=90" in edited.read_text()
    assert "/opt/awa" in newer["maintenance"].path.read_text(), "nothing else was written either"

    assert install(newest, force=True)[edited] is WriteResult.UPDATED
    assert "WatchdogSec=60" in edited.read_text()


def test_a_file_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    path = made(tmp_path)["target"].path
    path.parent.mkdir(parents=True)
    path.write_text("[Unit]\n")
    with pytest.raises(ConfigError, match="not written by awa"):
        install(made(tmp_path), force=False)


def test_the_example_names_settings_that_exist() -> None:
    """Every variable is an option's, a setting's, or Python's own."""
    from awa_py.settings import Settings, variable

    known = {variable(name) for name in Settings.__dataclass_fields__}
    options = "".join(path.read_text() for path in (ROOT / "cli").glob("*.py"))
    for name in re.findall(r"^#?([A-Z_]+)=", (ROOT / "systemd/example.env").read_text(), re.MULTILINE):
        assert name in known or f'"{name}"' in options or name == "PYTHONPATH", name
