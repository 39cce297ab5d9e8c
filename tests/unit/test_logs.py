"""Job fields on log lines, throttled lines, and the text, JSON and journal formats."""

import asyncio
import contextvars
import io
import json
import logging
import os
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from awa_cli import journal
from awa_cli.logs import JsonFormatter, LogFormat, LogLevel, TextFormatter, configure, fields_of

from awa_py.observability.logs import JobFilter, LogThrottle, current_call, current_worker
from tests.support import eventually

WORKER = "0f3a21bc-0000-4000-8000-000000000001"


class Job:
    def fields(self) -> dict[str, Any]:
        return {"job_id": 7, "job_kind": "send_email", "queue": "email", "attempt": 2}


class Batch:
    def fields(self) -> dict[str, Any]:
        return {"jobs": 3, "job_kind": "send_email", "queue": "email"}


@pytest.fixture
def logger(request: pytest.FixtureRequest) -> Iterator[logging.Logger]:
    logger = logging.getLogger(f"test.{request.node.name}")
    logger.setLevel(logging.INFO)
    yield logger
    logger.handlers.clear()


@pytest.fixture
def inside() -> Callable[..., Any]:
    """Return a function that calls another one in a handler's context."""

    def call(function: Callable[..., object], *values: object, of: object = None, **named: object) -> object:
        context = contextvars.copy_context()
        context.run(current_worker.set, WORKER)
        context.run(current_call.set, of or Job())  # type: ignore[arg-type]
        return context.run(lambda: function(*values, **named))

    return call


def written(logger: logging.Logger, formatter: logging.Formatter) -> io.StringIO:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    handler.addFilter(JobFilter())
    logger.addHandler(handler)
    return stream


class TestJobFields:
    def test_text_line_ends_with_the_job(self, logger: logging.Logger, inside: Callable[..., Any]) -> None:
        stream = written(logger, TextFormatter())
        inside(logger.info, "sent %d", 5)
        assert stream.getvalue().endswith(": sent 5 [job 7 send_email, queue email, attempt 2, worker 0f3a21bc]\n")

    def test_batch_shows_its_number_of_jobs(self, logger: logging.Logger, inside: Callable[..., Any]) -> None:
        stream = written(logger, TextFormatter())
        inside(logger.info, "sent", of=Batch())
        assert stream.getvalue().endswith(": sent [3 jobs send_email, queue email, worker 0f3a21bc]\n")

    def test_line_outside_of_handlers_has_no_job(self, logger: logging.Logger) -> None:
        stream = written(logger, TextFormatter())
        logger.info("hello")
        assert stream.getvalue().endswith(": hello\n")

    def test_traceback_follows_the_job(self, logger: logging.Logger, inside: Callable[..., Any]) -> None:
        stream = written(logger, TextFormatter())
        inside(logger.error, "oh", exc_info=ValueError("no"))
        first, *_, last = stream.getvalue().splitlines()
        assert first.endswith("worker 0f3a21bc]")
        assert last == "  ValueError: no"  # indented: a message must not look like another record

    @pytest.mark.parametrize("formatter", [TextFormatter, JsonFormatter])
    def test_control_and_bidirectional_characters_are_escaped(
        self, logger: logging.Logger, formatter: type[logging.Formatter]
    ) -> None:
        stream = written(logger, formatter())
        logger.info("a\x1b[31m\u202eb\r%s", "\x9b2J")
        assert not {"\x1b", "\u202e", "\r", "\x9b"} & set(stream.getvalue())

    def test_message_with_line_breaks_cannot_look_like_another_record(self, logger: logging.Logger) -> None:
        stream = written(logger, TextFormatter())
        logger.info("a\n2026-01-01 00:00:00,000 ERROR awa.worker: forged")
        first, second = stream.getvalue().splitlines()
        assert first.endswith(": a")
        assert second.startswith("  2026")

    def test_json_line_has_job_and_extra_fields(self, logger: logging.Logger, inside: Callable[..., Any]) -> None:
        stream = written(logger, JsonFormatter())
        inside(logger.info, "sent\n%d", 5, extra={"customer": 3, "when": object})
        entry = json.loads(stream.getvalue())
        assert entry.pop("time")
        assert entry == {
            "level": "info",
            "logger": logger.name,
            "message": "sent\n5",
            "job_id": 7,
            "kind": "send_email",
            "queue": "email",
            "attempt": 2,
            "worker": WORKER,
            "customer": 3,
            "when": "<class 'object'>",
        }

    def test_extra_fields_do_not_override_job_fields(self, logger: logging.Logger, inside: Callable[..., Any]) -> None:
        stream = written(logger, JsonFormatter())
        inside(logger.info, "x", extra={"job_id": 1, "queue": "mine", "kind": "mine"})
        entry = json.loads(stream.getvalue())
        assert (entry["job_id"], entry["queue"], entry["kind"]) == (7, "email", "send_email")

    def test_custom_format_can_use_job_fields(self, logger: logging.Logger, inside: Callable[..., Any]) -> None:
        stream = written(logger, logging.Formatter("%(job_id)s|%(job_kind)s|%(attempt)s|%(job)s|%(message)s"))
        inside(logger.info, "in")
        logger.info("out")
        inner, outer = stream.getvalue().splitlines()
        assert inner.startswith("7|send_email|2|[job 7 send_email")
        assert outer == "None|None|None||out"

    async def test_tasks_and_threads_of_a_handler_inherit_the_job(
        self, logger: logging.Logger, inside: Callable[..., Any]
    ) -> None:
        stream = written(logger, logging.Formatter("%(job_id)s %(message)s"))

        async def child() -> None:
            await asyncio.to_thread(logger.info, "thread")
            logger.info("task")

        await inside(lambda: asyncio.create_task(child()))
        logger.info("outside")
        assert stream.getvalue().splitlines() == ["7 thread", "7 task", "None outside"]


class TestLogThrottle:
    def lines(self, caplog: pytest.LogCaptureFixture, level: int = logging.INFO) -> list[str]:
        return [record.getMessage() for record in caplog.records if record.levelno >= level]

    def test_first_line_of_a_key_is_written_and_the_rest_counted(
        self, logger: logging.Logger, caplog: pytest.LogCaptureFixture
    ) -> None:
        throttle = LogThrottle(logger)
        for number in range(1000):
            throttle.log(logging.WARNING, "a", "a failed: %d", number)
        throttle.log(logging.ERROR, "b", "b failed")
        assert self.lines(caplog) == ["a failed: 0", "b failed"]
        throttle.close()
        assert self.lines(caplog)[2:] == ["a failed: 999 (and 998 more like it in 1s)"]

    async def test_held_back_line_is_written_after_the_pause(
        self, logger: logging.Logger, caplog: pytest.LogCaptureFixture
    ) -> None:
        throttle = LogThrottle(logger, pause_s=0.05)
        throttle.log(logging.WARNING, "a", "one")
        throttle.log(logging.WARNING, "a", "two", exc_info=ValueError("why"))
        await eventually(lambda: self.lines(caplog) == ["one", "two"])
        assert caplog.records[1].exc_info is not None

    def test_line_that_is_written_late_says_how_long_ago_its_event_was(
        self, logger: logging.Logger, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        throttle = LogThrottle(logger)
        for key, lines in (("a", 2), ("b", 3)):
            for number in range(lines):
                throttle.log(logging.WARNING, key, "%s failed: %d", key, number)
        now = time.monotonic()
        monkeypatch.setattr("awa_py.observability.logs.time.monotonic", lambda: now + 8)
        throttle.close()
        assert self.lines(caplog)[2:] == ["a failed: 1 (8s ago)", "b failed: 2 (8s ago, and 1 more like it in 9s)"]

    def test_pauses_double_while_lines_keep_coming(
        self, logger: logging.Logger, caplog: pytest.LogCaptureFixture
    ) -> None:
        throttle = LogThrottle(logger, pause_s=40)
        for _ in range(4):
            throttle.log(logging.WARNING, "a", "again")
            throttle.log(logging.WARNING, "a", "again")
            throttle._end_pause("a")
        assert throttle._pauses["a"].length_s == 600
        throttle.close()

    def test_line_after_a_quiet_pause_is_written_at_once(
        self, logger: logging.Logger, caplog: pytest.LogCaptureFixture
    ) -> None:
        throttle = LogThrottle(logger, pause_s=0)
        throttle.log(logging.WARNING, "a", "one")
        throttle.log(logging.WARNING, "a", "two")
        assert self.lines(caplog) == ["one", "two"]

    def test_every_line_is_written_at_debug_level(
        self, logger: logging.Logger, caplog: pytest.LogCaptureFixture
    ) -> None:
        logger.setLevel(logging.DEBUG)
        throttle = LogThrottle(logger)
        for number in range(3):
            throttle.log(logging.WARNING, "a", "%d", number)
        throttle.close()
        assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
            ("WARNING", "0"),
            ("DEBUG", "1"),
            ("DEBUG", "2"),
            ("WARNING", "2 (and 1 more like it in 1s)"),
        ]

    def test_held_back_line_keeps_its_worker_and_job(self, logger: logging.Logger, inside: Callable[..., Any]) -> None:
        stream = written(logger, logging.Formatter("%(worker)s %(job_id)s %(message)s"))
        throttle = LogThrottle(logger)
        for _ in range(2):
            inside(throttle.log, logging.WARNING, "a", "x", extra={"job_id": 5})
        throttle.close()
        assert stream.getvalue().splitlines()[-1] == f"{WORKER} 7 x"


class Journal:
    """A fake journald socket."""

    def __init__(self, directory: Path) -> None:
        self.path = str(directory / "socket")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.socket.settimeout(30)

    def read(self) -> dict[str, str]:
        data, descriptors, _, _ = socket.recv_fds(self.socket, 2**20, 1)
        if descriptors:
            assert data == b""
            with os.fdopen(descriptors[0], "rb") as file:
                file.seek(0)
                data = file.read()
        return decode(data)


def decode(data: bytes) -> dict[str, str]:
    """Decode journald's native protocol."""
    entry = {}
    while data:
        name, data = data.split(b"\n", 1)
        if b"=" in name:
            name, value = name.split(b"=", 1)
        else:
            (size,) = struct.unpack("<Q", data[:8])
            value, data = data[8 : 8 + size], data[8 + size + 1 :]
        entry[name.decode()] = value.decode()
    return entry


@pytest.fixture
def journal_socket() -> Iterator[Journal]:
    with tempfile.TemporaryDirectory() as directory:  # pytest's paths are too long for a socket
        server = Journal(Path(directory))
        yield server
        server.socket.close()


@pytest.fixture
def journaled(logger: logging.Logger, journal_socket: Journal) -> Iterator[io.StringIO]:
    """Log to the journal, and return the fallback stream."""
    stream = io.StringIO()
    handler = journal.JournalHandler(fields_of, fallback=logging.StreamHandler(stream), path=journal_socket.path)
    handler.addFilter(JobFilter())
    logger.addHandler(handler)
    logger.propagate = False  # keeps large and invalid text out of pytest's report
    yield stream
    handler.close()


class TestJournal:
    def test_entry_has_job_and_extra_fields(
        self, logger: logging.Logger, journal_socket: Journal, journaled: io.StringIO, inside: Callable[..., Any]
    ) -> None:
        inside(logger.warning, "sent %d", 5, extra={"customer-id": 3, "priority": "mine"})
        entry = journal_socket.read()
        assert entry.pop("CODE_FILE").endswith(".py")
        assert entry.pop("CODE_LINE").isdecimal()
        assert entry == {
            "MESSAGE": "sent 5 [job 7 send_email, queue email, attempt 2, worker 0f3a21bc]",
            "PRIORITY": "4",
            "SYSLOG_IDENTIFIER": "awa",
            "LOGGER": logger.name,
            "CODE_FUNC": "<lambda>",
            "AWA_JOB_ID": "7",
            "AWA_KIND": "send_email",
            "AWA_QUEUE": "email",
            "AWA_ATTEMPT": "2",
            "AWA_WORKER": WORKER,
            "CUSTOMER_ID": "3",
        }

    @pytest.mark.parametrize(
        ("level", "priority"), [("critical", "2"), ("error", "3"), ("warning", "4"), ("info", "6"), ("debug", "7")]
    )
    def test_level_is_mapped_to_a_priority(
        self, logger: logging.Logger, journal_socket: Journal, journaled: io.StringIO, level: str, priority: str
    ) -> None:
        logger.setLevel(logging.DEBUG)
        getattr(logger, level)("x")
        assert journal_socket.read()["PRIORITY"] == priority

    def test_multi_line_message_is_one_entry(
        self, logger: logging.Logger, journal_socket: Journal, journaled: io.StringIO
    ) -> None:
        try:
            raise ValueError("a=b\nc")
        except ValueError:
            logger.exception("first\nsecond=2")
        text = journal_socket.read()["MESSAGE"]
        assert text.startswith("first\nsecond=2\nTraceback")
        assert text.endswith("ValueError: a=b\nc")

    def test_lone_surrogates_are_escaped(self) -> None:
        assert decode(journal.encode({"MESSAGE": "a\ud800"})) == {"MESSAGE": "a\\ud800"}

    def test_message_too_large_for_a_datagram_arrives(
        self, logger: logging.Logger, journal_socket: Journal, journaled: io.StringIO
    ) -> None:
        logger.info("%s", "x" * 5_000_000)
        assert journal_socket.read()["MESSAGE"] == "x" * 5_000_000

    def test_fallback_handler_writes_if_the_journal_is_gone(
        self, logger: logging.Logger, journal_socket: Journal, journaled: io.StringIO
    ) -> None:
        journal_socket.socket.close()
        logger.info("is anybody there?")
        assert journaled.getvalue() == "is anybody there?\n"

    def test_journal_stream_variable_identifies_standard_error(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(journal, "SOCKET", str(tmp_path))
        with (tmp_path / "log").open("w") as stream:
            status = os.fstat(stream.fileno())
            assert not journal.is_stderr(stream.fileno())
            monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino + 1}")
            assert not journal.is_stderr(stream.fileno())  # standard error was redirected
            monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
            assert journal.is_stderr(stream.fileno())
            monkeypatch.setattr(journal, "SOCKET", str(tmp_path / "nobody"))
            assert not journal.is_stderr(stream.fileno())

    @pytest.mark.parametrize(
        ("chosen", "under_systemd", "handler"),
        [
            (LogFormat.AUTO, True, journal.JournalHandler),
            (LogFormat.AUTO, False, logging.StreamHandler),
            (LogFormat.TEXT, True, logging.StreamHandler),
            (LogFormat.JSON, True, logging.StreamHandler),
            (LogFormat.JOURNAL, False, journal.JournalHandler),
        ],
    )
    def test_auto_format_uses_the_journal_under_systemd(
        self, monkeypatch: pytest.MonkeyPatch, chosen: LogFormat, under_systemd: bool, handler: type
    ) -> None:
        before = logging.root.handlers[:], logging.root.level
        logging.root.handlers.clear()
        monkeypatch.setattr(journal, "is_stderr", lambda: under_systemd)
        try:
            configure(chosen, LogLevel.INFO)
            (found,) = logging.root.handlers
            assert type(found) is handler
            assert any(isinstance(each, JobFilter) for each in found.filters)
            found.close()
        finally:
            logging.root.handlers[:], logging.root.level = before
