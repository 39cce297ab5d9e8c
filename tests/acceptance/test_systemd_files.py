"""awa systemd"""

import os
from pathlib import Path

import pytest

from tests.acceptance.conftest import Awa


def test_show_prints_one_file_or_all(bare_awa: Awa) -> None:
    one = bare_awa.ok("systemd", "show", "worker", "--command", "/opt/awa/bin/awa").out
    assert "\nExecStart=/opt/awa/bin/awa worker\n" in one
    everything = bare_awa.ok("systemd", "show", "--command", "/opt/awa/bin/awa").out
    assert one in everything
    assert "\n# /etc/systemd/system/awa.target\n" in everything
    assert '\nu awa - "awa job queue" /var/lib/awa\n' in everything


def test_install_for_a_user_prints_the_next_steps(bare_awa: Awa, tmp_path: Path) -> None:
    env = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    answer = bare_awa.ok("systemd", "install", "--user", env=env)
    assert f"written   {tmp_path}/config/systemd/user/awa-worker@.service\n" in answer.out
    assert "systemctl --user enable --now" in answer.out
    assert "unchanged" in bare_awa.ok("systemd", "install", "--user", env=env).out


def test_mistake_is_explained(bare_awa: Awa, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for arguments, code, sentence in (
        (["show", "workers"], 2, 'unknown file "workers": use one of worker, maintenance'),
        (["show", "sysusers", "--user"], 2, "only needed without --user"),
        (["show", "--command", "awa"], 2, "must be an absolute path"),
        (["install", "--user", "--prefix", "/srv"], 2, "not both"),
        (["install", "--prefix", str(tmp_path / "file")], 1, "cannot write"),
    ):
        answer = bare_awa("systemd", *arguments)
        assert (answer.code, sentence in answer.err) == (code, True), answer.err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_install_without_rights_suggests_user(bare_awa: Awa) -> None:
    answer = bare_awa("systemd", "install")
    assert answer.code == 1
    assert "Permission denied; run it as root, or use --user" in answer.err


def test_check_validates_without_starting(awa: Awa, bare_awa: Awa) -> None:
    assert awa.ok("worker", "tasks:app", "-q", "default", "--check").out == "the configuration is valid\n"
    assert awa.ok("maintenance", "--check").out == "the configuration is valid\n"
    assert "no database" in bare_awa("worker", "tasks:app", "-q", "default", "--check").err
    assert "no module" in awa("worker", "nowhere:app", "-q", "default", "--check").err


def test_database_url_can_be_a_systemd_credential(bare_awa: Awa, database_url: str, tmp_path: Path) -> None:
    (tmp_path / "database_url").write_text(f"{database_url}\n")
    credentials = {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    assert bare_awa.ok("leader", "--json", env=credentials).json is None
    answer = bare_awa("leader", env={**credentials, "AWA_DATABASE_URL": "mysql://first"})
    assert "must begin with postgresql://" in answer.err
