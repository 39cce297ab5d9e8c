"""What the leader logs and traces about its tasks."""

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import datetime

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from awa_py import App
from awa_py.maintenance.tasks import all_tasks
from awa_py.observability.metrics import Metrics
from awa_py.store.session import Session
from tests.support import QUICK, ago, eventually, insert, look

pytestmark = pytest.mark.integration


@pytest.fixture
def app(database_url: str) -> App:
    return App(database_url, settings=QUICK)


@asynccontextmanager
async def leading(app: App, session: Session) -> AsyncIterator[None]:
    """Run a leader that finds something to do."""
    await insert(session, "dead", 2, state="failed", finalized_at=ago(10 * 86_400))
    await insert(session, "scheduled", 3, state="scheduled", run_at=ago(60), queue="later")
    await session.connection.execute(
        "INSERT INTO awa.cron (name, expression, kind, effective_from, next_at) "
        "VALUES ('tick', '* * * * * *', 'work', now() - interval '1 minute', now())"
    )
    candidate = app.candidate()
    candidate.start()
    try:
        yield
    finally:
        await candidate.stop()


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


@pytest.mark.parametrize(
    ("level", "text"), [(logging.INFO, "cleanup: 2 dead jobs"), (logging.DEBUG, "promote: 3 promoted jobs")]
)
async def test_task_is_logged_with_its_counts(  # A21
    app: App, session: Session, caplog: pytest.LogCaptureFixture, level: int, text: str
) -> None:
    caplog.set_level(logging.DEBUG, "awa")
    async with leading(app, session):
        line = await eventually(lambda: find_line(caplog, text))
    assert line.levelno == level


async def test_fire_is_logged_with_schedule_job_and_fire_time(  # A21
    app: App, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "awa")
    async with leading(app, session):
        line = await eventually(lambda: find_line(caplog, "schedule tick fired"))
        job = await look(session, line.job_id)
    fire_time = datetime.fromisoformat(job.metadata["fire_time"])
    assert line.levelno == logging.INFO
    assert line.getMessage() == f"schedule tick fired for {fire_time.isoformat()}: job {job.id}"


def find_line(caplog: pytest.LogCaptureFixture, text: str) -> logging.LogRecord | None:
    return next((line for line in caplog.records if text in line.getMessage()), None)


async def test_each_task_is_a_span(app: App, session: Session, spans: InMemorySpanExporter) -> None:  # A21
    tasks = (task for task in all_tasks(QUICK, [], Metrics()) if not task.only_if_idle)
    names = {f"maintenance {task.name}" for task in tasks if not task.only_after_invalid_data}

    def found() -> dict[str, ReadableSpan]:
        return {span.name: span for span in reversed(spans.get_finished_spans())}

    async with leading(app, session):
        await eventually(lambda: found().keys() >= names)
    first = found()["maintenance promote"]
    assert dict(first.attributes or {}) == {"awa.task.name": "promote", "awa.task.rows_changed": 3}
    assert first.parent is None


async def test_span_of_a_task_that_fails_is_an_error_without_its_message(
    spans: InMemorySpanExporter, app: App, session: Session
) -> None:
    await session.connection.execute("ALTER TABLE awa.dead RENAME TO gone")
    candidate = app.candidate()
    candidate.start()

    def failed() -> ReadableSpan | None:
        errors = (span for span in spans.get_finished_spans() if span.status.status_code is StatusCode.ERROR)
        return next(errors, None)

    span: ReadableSpan = await eventually(failed)
    await candidate.stop()
    assert (span.attributes or {})["error.type"] == "UndefinedTableError"
    assert (span.status.description, span.events) == (None, ())
