"""Start the guardian of a directory: find the programs, create the data, pass on the lock."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from awa_py.embedded import guardian
from awa_py.embedded.account import Account, ReachablePath, reachable_path, server_account, server_environment
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

RESERVED_SETTINGS = frozenset(
    {"cluster_name", "listen_addresses", "logging_collector", "port", "unix_socket_directories"}
)


def checked_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings merged with the defaults. Raise ConfigError for a reserved setting."""
    reserved = sorted(RESERVED_SETTINGS & settings.keys())
    if reserved:
        raise ConfigError(f"{', '.join(reserved)} cannot be set: the embedded PostgreSQL chooses it")
    return DEFAULTS | dict(settings)


def launch_guardian(home: Home, lock_fd: int, *, settings: Mapping[str, str], temporary: bool) -> None:
    """Start a guardian. It inherits the lock of `lock_fd`, which is held exactly as long as the guardian lives."""
    os.ftruncate(lock_fd, 0)
    binaries, account = _find_programs(home)
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
    with reachable_path(home.data, account) as reachable:
        marker = _unique_marker(home.data)
        _detach(
            guardian.LaunchRequest(
                argv=_server_command(
                    binaries, reachable, {**settings, **_reserved_settings(home, reachable, access, marker)}
                ),
                data=str(home.data),
                marker=marker,
                users_lock=str(home.users_lock),
                hold_lock=str(home.hold_lock),
                log=str(home.log),
                lock_fd=lock_fd,
                server_fds=list(reachable.fds),
                uid=account.uid if account.switch else None,
                gid=account.gid if account.switch else None,
                remove=str(home.path) if temporary else None,
            )
        )


def _find_programs(home: Home) -> tuple[Path, Account]:
    try:
        binaries = find_binaries(existing_major(home))
        account = server_account(home.data)
        return binaries_for(account, binaries), account
    except EmbeddedError as error:
        raise EmbeddedError(f"{home.path}: {error}") from error


def _unique_marker(data: Path) -> str:
    """Return a name that is unique to this directory, also among copies of it and directories of the same name."""
    status = data.stat()
    return "awa-" + hashlib.sha256(f"{data}:{status.st_dev}:{status.st_ino}".encode()).hexdigest()[:16]


def _reserved_settings(home: Home, reachable: ReachablePath, access: Access, marker: str) -> dict[str, str]:
    quoted = '"' + reachable.path.replace('"', '""') + '"'
    return {
        # PostgreSQL shows it in the titles of its processes.
        "cluster_name": marker,
        "listen_addresses": "127.0.0.1",
        "logging_collector": "off",
        "port": str(access.port),
        "unix_socket_directories": quoted if home.has_socket() else "",
    }


def _server_command(binaries: Path, reachable: ReachablePath, settings: Mapping[str, str]) -> list[str]:
    options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    return [str(binaries / "postgres"), "-D", reachable.path, *options]


def _detach(request: guardian.LaunchRequest) -> None:
    # Isolated and without site-packages: it starts in milliseconds in any environment.
    argv = [sys.executable, "-I", "-S", guardian.__file__, request.dump()]
    try:
        with open(request.log, "ab", opener=guardian.open_private) as log:
            subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=server_environment(),
                pass_fds=(request.lock_fd, *request.server_fds),
                # Ctrl-C signals the terminal's whole process group, which the server must not be in.
                start_new_session=True,
                check=True,
            )
    except (OSError, subprocess.CalledProcessError) as error:
        raise EmbeddedError(f"cannot start the guardian of {request.data}: {error}") from error
