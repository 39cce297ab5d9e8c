"""A logging handler for systemd's journal in its native protocol, so that records have fields to filter by.

    journalctl AWA_JOB_ID=123        journalctl -u 'awa-worker*' AWA_KIND=send_email PRIORITY=3

A datagram contains `FIELD=value` lines; a multi-line value follows its field's name and its length. An entry that is
too large for a datagram is written to a sealed file in memory, and only its descriptor is sent.
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
_AWA_FIELDS = ("job_id", "kind", "queue", "attempt", "jobs", "worker")


def is_stderr(descriptor: int = 2) -> bool:
    """Return True if standard error is connected to the journal, according to systemd's JOURNAL_STREAM."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}" and os.path.exists(SOCKET)


class JournalHandler(logging.Handler):
    """Send records to the journal; if that fails, pass them to the fallback."""

    def __init__(
        self,
        fields_of: Callable[[logging.LogRecord], Mapping[str, Any]],
        *,
        fallback: logging.Handler,
        path: str = SOCKET,
    ) -> None:
        super().__init__()
        self._fields_of = fields_of
        self._fallback = fallback
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._send(encode(self._entry(record)))
        except OSError:  # e.g. the journal is being restarted
            self._fallback.handle(record)
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
    """Serialize an entry in the journal's protocol."""
    parts: list[bytes] = []
    for name, text in entry.items():
        value = text.encode("utf-8", "backslashreplace")
        if b"\n" in value:
            parts.append(b"%s\n%s%s\n" % (name.encode(), struct.pack("<Q", len(value)), value))
        else:
            parts.append(b"%s=%s\n" % (name.encode(), value))
    return b"".join(parts)


def _name(field: str) -> str:
    """Return AWA_JOB_ID, AWA_KIND, …; other fields keep their names, in characters that the journal allows."""
    name = re.sub(r"[^A-Z0-9_]", "_", field.upper())
    return f"AWA_{name}" if field in _AWA_FIELDS else name.lstrip("_0123456789") or "EXTRA"
