"""The unit files, made to fit: this installation's command, the system or a user, this version of systemd."""

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

OLDEST = 252  # of the versions of systemd that the files are written for
PACKAGED_COMMAND = "/usr/bin/awa"
HOMES = ("/home", "/root", "/run/user")

# What only the system's manager can do, or what is only there.
_SYSTEM_ONLY = re.compile(
    r"(User|Group|LoadCredential|CapabilityBoundingSet|AmbientCapabilities|Protect\w+|Private\w+|RemoveIPC)=|"
    r"(Wants|After)=network-online\.target"
)
_SINCE = re.compile(r"#(\d+) (.*)")
_SEAL = re.compile(r"# Written by `awa systemd install` \((\w+)\): .*\n")


@dataclass(frozen=True, slots=True)
class UnitTemplate:
    """A file, where it belongs, and who may read it."""

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
    """What became of a file."""

    WRITTEN = "written"
    UPDATED = "updated"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class UnitFile:
    """A file as it is to be."""

    path: Path
    text: str
    mode: int

    @property
    def sealed(self) -> str:
        """The text below a line that tells it apart from one that somebody edited."""
        seal = _checksum(self.text)
        return f"# Written by `awa systemd install` ({seal}): changes belong into a drop-in.\n{self.text}"

    @property
    def is_edited(self) -> bool:
        """Whether what is there is neither this nor what an earlier installation wrote."""
        there = self._there()
        if there is None or there == self.sealed:
            return False
        seal = _SEAL.match(there)
        return seal is None or seal[1] != _checksum(there[seal.end() :])

    def write(self) -> WriteResult:
        there = self._there()
        if there == self.sealed:
            return WriteResult.UNCHANGED
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_name(f".{self.path.name}.new")
        new.touch(self.mode)
        new.chmod(self.mode)
        new.write_text(self.sealed, encoding="utf-8")
        new.replace(self.path)
        return WriteResult.WRITTEN if there is None else WriteResult.UPDATED

    def _there(self) -> str | None:
        try:
            return self.path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return None


def unit_files(base: Path, *, for_user: bool, command: str, version: int = OLDEST) -> dict[str, UnitFile]:
    """Every file that belongs to the system, or to a user, below the base, by its short name."""
    made = {}
    for name, kind in UNIT_TEMPLATES.items():
        path = kind.user_path if for_user else kind.system_path
        if path is not None:
            text = files("awa_systemd").joinpath(kind.source).read_text(encoding="utf-8")
            made[name] = UnitFile(base / path, _fitted(text, for_user, command, version), kind.mode)
    return made


def install(wanted: Mapping[str, UnitFile], *, force: bool) -> dict[Path, WriteResult]:
    """Writes the files. Raises, and writes nothing, where one was edited and `force` does not say that it may go."""
    try:
        edited = [] if force else [str(file.path) for file in wanted.values() if file.is_edited]
        if edited:
            raise ConfigError(
                f"not written by awa, or changed since: {', '.join(edited)}; move the changes to a drop-in "
                "(systemctl edit), or use --force"
            )
        return {file.path: file.write() for file in wanted.values()}
    except OSError as error:
        raise AwaError(f"cannot write {error.filename}: {error.strerror}; run it as root, or use --user") from error


def find_command() -> str:
    """How to start this very awa: the script beside its Python, else the module."""
    script = Path(sys.executable).with_name("awa")
    return _word(str(script)) if script.exists() else f"{_word(sys.executable)} -m awa_cli"


def systemd_version() -> int:
    """The version of the systemd that is installed; the oldest one that will do where there is none."""
    systemctl = shutil.which("systemctl")
    if systemctl is None:
        return OLDEST
    answer = subprocess.run([systemctl, "--version"], capture_output=True, text=True, check=False).stdout
    number = re.match(r"systemd (\d+)", answer)
    return OLDEST if number is None else int(number[1])


def command_problems(command: str) -> list[str]:
    """What will keep the system's services from this command, in sentences."""
    places = [Path(command.split()[0].strip('"')), Path(sys.base_prefix)]
    hidden = sorted(
        {str(place) for place in places if place.is_relative_to("/tmp") or place.is_relative_to("/var/tmp")}
    )
    private = sorted({str(place) for place in places if place.is_relative_to("/root")})
    return [
        f"{place} is hidden from services (PrivateTmp=): install awa elsewhere, such as /opt" for place in hidden
    ] + [
        f"{place} can be read by root alone, and the services run as awa: install awa elsewhere, such as /opt"
        for place in private
    ]


def _fitted(text: str, for_user: bool, command: str, version: int) -> str:
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
    """`#254 Key=value` is for that version and newer ones: older ones would complain."""
    for line in lines:
        since = _SINCE.fullmatch(line)
        if since is None:
            yield line
        elif int(since[1]) <= version:
            yield since[2]


def _without(unwanted: re.Pattern[str], lines: Sequence[str]) -> Iterator[str]:
    """Without these lines, and the comments right above them."""
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


def _word(path: str) -> str:
    """A path as one word of ExecStart=."""
    escaped = path.replace("\\", "\\\\").replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if re.search(r"\s", escaped) else escaped


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
