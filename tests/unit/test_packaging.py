"""The wheel contains all packages and data files."""

import tomllib
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_package_is_listed() -> None:
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    found = {".".join(init.parent.relative_to(ROOT).parts) for init in (ROOT / "awa_py").rglob("__init__.py")}
    assert found | {"awa_cli", "awa_cli.bench", "awa_cli.demo", "awa_monitoring", "awa_schema", "awa_systemd"} == listed


def test_every_unit_file_is_in_the_wheel() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["awa_systemd"]
    for path in (ROOT / "systemd").iterdir():
        if path.is_file() and path.suffix != ".py":
            assert any(fnmatch(path.name, pattern) for pattern in patterns), path.name


def test_every_schema_file_is_in_the_wheel() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["awa_schema"]
    included = {path for pattern in patterns for path in (ROOT / "schema").glob(pattern)}
    assert set((ROOT / "schema").rglob("*.sql")) <= included
