"""Parsing of EnvironmentFile=. tests/systemd compares it with systemd itself."""

from pathlib import Path

import pytest

from awa_py.errors import ConfigError
from awa_py.systemd.envfile import parse, read
from tests.envfiles import TRICKY


def test_parser_supports_the_whole_syntax() -> None:
    assert parse(TRICKY) == {
        "X01": "plain",
        "X02": "blanks around",
        "X03": 'single $HOME \\n "quotes"',
        "X04": 'double " \\ $ ` \\n',
        "X05": "two\nlines",
        "X06": "goes on",
        "X07": 'backslash "bare"',
        "X08": "",
        "X09": 'it\'s "bare" # no comment',
        "X10": "onetwothree",
        "X11": "postgresql://awa:p%40ss=word@localhost:5432/awa?a=b#c",
        "X13": "last",
        "X14": "goes on",
        "X15": "grün",
        "X16": "  kept  ",
        "X17": "abc  d",
    }


def test_missing_file_has_no_variables(tmp_path: Path) -> None:
    assert read(tmp_path / "nowhere.env") == {}


def test_error_names_an_unreadable_file(tmp_path: Path) -> None:
    (tmp_path / "latin.env").write_bytes(b"AWA_QUEUES=gr\xfcn\n")
    with pytest.raises(ConfigError, match=r"latin\.env: it is not UTF-8"):
        read(tmp_path / "latin.env")
    with pytest.raises(ConfigError, match="Is a directory"):
        read(tmp_path)
