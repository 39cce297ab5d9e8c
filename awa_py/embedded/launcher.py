"""Starts the guardian of a directory: finds the programs, makes the data, hands over the lock."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from awa_py.embedded import guardian
from awa_py.embedded.account import Account, Doorway, doorway, server_account, server_environment
from awa_py.embedded.binaries import binaries_for, find_binaries, major_version
from awa_py.embedded.cluster import Access, Home, create_cluster, ensure_access, existing_major
from awa_py.errors import ConfigError, EmbeddedError

DEFAULTS = {
    "shared_buffers": "128MB",
    "max_connections": "200",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_min_messages": "warning",
    "log_checkpoints": "off",
    "log_autovacuum_min_duration": "-1",
}

OWN_SETTINGS = frozenset({"cluster_name", "listen_addresses", "logging_collector", "port", "unix_socket_directories"})


def checked_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """The given settings over the defaults; ConfigError for one that the launcher must choose itself."""
    refused = sorted(OWN_SETTINGS & settings.keys())
    if refused:
        raise ConfigError(f"{', '.join(refused)}: the embedded PostgreSQL settles that itself")
    return DEFAULTS | dict(settings)


def launch_guardian(home: Home, lock_fd: int, *, settings: Mapping[str, str], temporary: bool) -> None:
    """Start a guardian, which inherits the lock that `lock_fd` holds: while it is locked, it is alive."""
    os.ftruncate(lock_fd, 0)
    binaries, account = _programs_for(home)
    access = ensure_access(home)
    if not home.data.exists():
        create_cluster(
            home,
            binaries,
            account,
            password=access.password,
            major=major_version(binaries),
            durable=settings.get("fsync") != "off",
        )
    with doorway(home.data, account) as door:
        marker = _marker_of(home.data)
        _detach(
            guardian.Orders(
                argv=_server_command(binaries, door, {**settings, **_own_settings(home, door, access, marker)}),
                data=str(home.data),
                marker=marker,
                users_lock=str(home.users_lock),
                hold_lock=str(home.hold_lock),
                log=str(home.log),
                lock_fd=lock_fd,
                server_fds=list(door.fds),
                uid=account.uid if account.switch else None,
                gid=account.gid if account.switch else None,
                remove=str(home.path) if temporary else None,
            )
        )


def _programs_for(home: Home) -> tuple[Path, Account]:
    try:
        binaries = find_binaries(existing_major(home))
        account = server_account(home.data)
        return binaries_for(account, binaries), account
    except EmbeddedError as error:
        raise EmbeddedError(f"{home.path}: {error}") from error


def _marker_of(data: Path) -> str:
    """A name for the server of this directory that no other directory has, be it a copy or a namesake."""
    status = data.stat()
    return "awa-" + hashlib.sha256(f"{data}:{status.st_dev}:{status.st_ino}".encode()).hexdigest()[:16]


def _own_settings(home: Home, door: Doorway, access: Access, marker: str) -> dict[str, str]:
    quoted = '"' + door.path.replace('"', '""') + '"'
    return {
        # PostgreSQL shows it in the title of each of its processes.
        "cluster_name": marker,
        "listen_addresses": "127.0.0.1",
        "logging_collector": "off",
        "port": str(access.port),
        "unix_socket_directories": quoted if home.has_socket() else "",
    }


def _server_command(binaries: Path, door: Doorway, settings: Mapping[str, str]) -> list[str]:
    options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    return [str(binaries / "postgres"), "-D", door.path, *options]


def _detach(orders: guardian.Orders) -> None:
    # Isolated and without site-packages: it starts in milliseconds, whatever the environment holds.
    argv = [sys.executable, "-I", "-S", guardian.__file__, orders.dump()]
    try:
        with open(orders.log, "ab", opener=_private_opener) as log:
            subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=server_environment(),
                pass_fds=(orders.lock_fd, *orders.server_fds),
                # A Ctrl-C in the terminal reaches its whole process group: the server must not be in it.
                start_new_session=True,
                check=True,
            )
    except (OSError, subprocess.CalledProcessError) as error:
        raise EmbeddedError(f"the guardian of {orders.data} does not start: {error}") from error


def _private_opener(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
