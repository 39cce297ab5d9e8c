"""systemd's journal, spoken to in its own protocol: each line with fields that can be asked for.

    journalctl AWA_JOB_ID=123        journalctl -u 'awa-worker*' AWA_KIND=send_email PRIORITY=3

A datagram holds `FIELD=value` lines; a value of several lines follows its field's name and its length. What is too
large for a datagram goes as a sealed file in memory, of which only the descriptor is sent.
"""

import errno
import fcntl
import logging
import os
import re
import socket
import struct
from collections.abc import Callable, Mapping
from typing import Any

SOCKET = "/run/systemd/journal/socket"
IDENTIFIER = "awa"
PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
DEBUG_PRIORITY = 7
_TOO_LARGE = (errno.EMSGSIZE, errno.ENOBUFS)
_OURS = ("job_id", "kind", "queue", "attempt", "jobs", "worker")


def is_stderr(descriptor: int = 2) -> bool:
    """Whether standard error leads to the journal: systemd says so, and says which stream it means."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}" and os.path.exists(SOCKET)


class JournalHandler(logging.Handler):
    """Sends records to the journal; one that it does not take goes the other way."""

    def __init__(
        self,
        fields_of: Callable[[logging.LogRecord], Mapping[str, Any]],
        *,
        otherwise: logging.Handler,
        path: str = SOCKET,
    ) -> None:
        super().__init__()
        self._fields_of = fields_of
        self._otherwise = otherwise
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._send(encode(self._entry(record)))
        except OSError:  # the journal is being restarted, say
            self._otherwise.handle(record)
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        self._socket.close()
        super().close()

    def _entry(self, record: logging.LogRecord) -> dict[str, str]:
        fields = self._fields_of(record)
        job = getattr(record, "job", "")
        text = f"{record.getMessage()} {job}" if job else record.getMessage()
        if record.exc_info:
            text = f"{text}\n{logging.Formatter().formatException(record.exc_info)}"
        return {
            **{_name(name): str(value) for name, value in fields.items()},
            "MESSAGE": text,
            "PRIORITY": str(next((number for level, number in PRIORITIES if record.levelno >= level), DEBUG_PRIORITY)),
            "SYSLOG_IDENTIFIER": IDENTIFIER,
            "LOGGER": record.name,
            "CODE_FILE": record.pathname,
            "CODE_LINE": str(record.lineno),
            "CODE_FUNC": record.funcName or "",
        }

    def _send(self, entry: bytes) -> None:
        try:
            self._socket.sendto(entry, self._path)
        except OSError as error:
            if error.errno not in _TOO_LARGE:
                raise
            self._send_as_file(entry)

    def _send_as_file(self, entry: bytes) -> None:
        descriptor = os.memfd_create("awa-log", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            with os.fdopen(os.dup(descriptor), "wb") as file:
                file.write(entry)
            fcntl.fcntl(
                descriptor,
                fcntl.F_ADD_SEALS,
                fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE,
            )
            self._socket.sendmsg(
                [b""], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", descriptor))], 0, self._path
            )
        finally:
            os.close(descriptor)


def encode(entry: Mapping[str, str]) -> bytes:
    """The entry as the journal reads it."""
    parts: list[bytes] = []
    for name, text in entry.items():
        value = text.encode("utf-8", "backslashreplace")
        if b"\n" in value:
            parts.append(b"%s\n%s%s\n" % (name.encode(), struct.pack("<Q", len(value)), value))
        else:
            parts.append(b"%s=%s\n" % (name.encode(), value))
    return b"".join(parts)


def _name(field: str) -> str:
    """AWA_JOB_ID, AWA_KIND …; of what a logging call gave, its name in the journal's letters."""
    letters = re.sub(r"[^A-Z0-9_]", "_", field.upper())
    return f"AWA_{letters}" if field in _OURS else letters.lstrip("_0123456789") or "EXTRA"
