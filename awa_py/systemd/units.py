"""Unit files, adapted to this installation: its command, system or user services, and the version of systemd."""

import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from pathlib import Path

from awa_py.errors import AwaError, ConfigError

MIN_VERSION = 252  # the oldest supported version of systemd
PACKAGED_COMMAND = "/usr/bin/awa"
HOMES = ("/home", "/root", "/run/user")

# Directives that only the system manager supports, and units that only it has.
_SYSTEM_ONLY = re.compile(
    r"(User|Group|LoadCredential|CapabilityBoundingSet|AmbientCapabilities|Protect\w+|Private\w+|RemoveIPC)=|"
    r"(Wants|After)=network-online\.target"
)
_SINCE = re.compile(r"#(\d+) (.*)")
_HEADER = re.compile(r"# Written by `awa systemd install` \((\w+)\): .*\n")


@dataclass(frozen=True, slots=True)
class UnitTemplate:
    """A packaged file, its destinations, and its mode."""

    source: str
    system_path: str
    user_path: str | None = None
    mode: int = 0o644


UNIT_TEMPLATES = {
    "worker": UnitTemplate(
        "awa-worker@.service", "etc/systemd/system/awa-worker@.service", "systemd/user/awa-worker@.service"
    ),
    "maintenance": UnitTemplate(
        "awa-maintenance.service", "etc/systemd/system/awa-maintenance.service", "systemd/user/awa-maintenance.service"
    ),
    "target": UnitTemplate("awa.target", "etc/systemd/system/awa.target", "systemd/user/awa.target"),
    "sysusers": UnitTemplate("awa.sysusers", "etc/sysusers.d/awa.conf"),
    "tmpfiles": UnitTemplate("awa.tmpfiles", "etc/tmpfiles.d/awa.conf"),
    "env": UnitTemplate("example.env", "etc/awa/example.env", "awa/example.env", mode=0o640),
}


class WriteResult(StrEnum):
    """What install() did with a file."""

    WRITTEN = "written"
    UPDATED = "updated"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class UnitFile:
    """The intended content of a file."""

    path: Path
    text: str
    mode: int

    @property
    def text_with_header(self) -> str:
        """The text below a header with its checksum, which reveals later edits."""
        checksum = _checksum(self.text)
        return f"# Written by `awa systemd install` ({checksum}): put changes into a drop-in.\n{self.text}"

    @property
    def is_edited(self) -> bool:
        """Whether the existing file was edited, or not written by awa."""
        existing = self._existing()
        if existing is None or existing == self.text_with_header:
            return False
        header = _HEADER.match(existing)
        return header is None or header[1] != _checksum(existing[header.end() :])

    def write(self) -> WriteResult:
        existing = self._existing()
        if existing == self.text_with_header:
            return WriteResult.UNCHANGED
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_name(f".{self.path.name}.new")
        new.touch(self.mode)
        new.chmod(self.mode)
        new.write_text(self.text_with_header, encoding="utf-8")
        new.replace(self.path)
        return WriteResult.WRITTEN if existing is None else WriteResult.UPDATED

    def _existing(self) -> str | None:
        try:
            return self.path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return None


def unit_files(base: Path, *, for_user: bool, command: str, version: int = MIN_VERSION) -> dict[str, UnitFile]:
    """Return the files for the system or for a user, with paths below `base`, by short name."""
    result = {}
    for name, template in UNIT_TEMPLATES.items():
        path = template.user_path if for_user else template.system_path
        if path is not None:
            text = files("awa_systemd").joinpath(template.source).read_text(encoding="utf-8")
            result[name] = UnitFile(base / path, _adapt(text, for_user, command, version), template.mode)
    return result


def install(wanted: Mapping[str, UnitFile], *, force: bool) -> dict[Path, WriteResult]:
    """Write the files. If one was edited and `force` is not set, raise ConfigError and write nothing."""
    try:
        edited = [] if force else [str(file.path) for file in wanted.values() if file.is_edited]
        if edited:
            raise ConfigError(
                f"these files were not written by awa, or were changed since: {', '.join(edited)}; "
                "move the changes to a drop-in (systemctl edit), or use --force"
            )
        return {file.path: file.write() for file in wanted.values()}
    except OSError as error:
        raise AwaError(f"cannot write {error.filename}: {error.strerror}; run it as root, or use --user") from error


def find_command() -> str:
    """Return the command of this installation: the script next to its Python, or else the module."""
    script = Path(sys.executable).with_name("awa")
    return _quote(str(script)) if script.exists() else f"{_quote(sys.executable)} -m awa_cli"


def systemd_version() -> int:
    """Return the installed version of systemd; the oldest supported one if there is none."""
    systemctl = shutil.which("systemctl")
    if systemctl is None:
        return MIN_VERSION
    answer = subprocess.run([systemctl, "--version"], capture_output=True, text=True, check=False).stdout
    number = re.match(r"systemd (\d+)", answer)
    return MIN_VERSION if number is None else int(number[1])


def command_problems(command: str) -> list[str]:
    """Return reasons why system services cannot run this command."""
    paths = [Path(command.split()[0].strip('"')), Path(sys.base_prefix)]
    hidden = sorted({str(path) for path in paths if path.is_relative_to("/tmp") or path.is_relative_to("/var/tmp")})
    private = sorted({str(path) for path in paths if path.is_relative_to("/root")})
    return [
        f"{path} is not visible to services (PrivateTmp=): install awa elsewhere, e.g. in /opt" for path in hidden
    ] + [
        f"{path} can be read only by root, and the services run as awa: install awa elsewhere, e.g. in /opt"
        for path in private
    ]


def _adapt(text: str, for_user: bool, command: str, version: int) -> str:
    lines: Sequence[str] = list(_for_version(text.splitlines(), version))
    if for_user:
        lines = list(_without(_SYSTEM_ONLY, lines))
    text = "\n".join(lines) + "\n"
    if for_user:
        text = text.replace("/etc/awa/", "~/.config/awa/").replace("multi-user.target", "default.target")
        text = re.sub(r"systemctl (?=\w+ awa)", "systemctl --user ", text)
    if any(word.strip('"').startswith(HOMES) for word in (*command.split(), sys.base_prefix)):
        text = text.replace("ProtectHome=yes", "ProtectHome=read-only")
    return text.replace(f"={PACKAGED_COMMAND} ", f"={command} ")


def _for_version(lines: Sequence[str], version: int) -> Iterator[str]:
    """Yield the lines for this version: `#254 Key=value` is only for version 254 and newer."""
    for line in lines:
        since = _SINCE.fullmatch(line)
        if since is None:
            yield line
        elif int(since[1]) <= version:
            yield since[2]


def _without(unwanted: re.Pattern[str], lines: Sequence[str]) -> Iterator[str]:
    """Yield the lines without the unwanted ones and the comments directly above them."""
    comments: list[str] = []
    for line in lines:
        if line.startswith("#"):
            comments.append(line)
            continue
        if not unwanted.match(line):
            yield from comments
            yield line
        comments = []
    yield from comments


def _quote(path: str) -> str:
    """Quote a path as one word of ExecStart=."""
    escaped = path.replace("\\", "\\\\").replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if re.search(r"\s", escaped) else escaped


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
