"""Counts, records and logs jobs after their outcomes were written."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from logging import ERROR, INFO, WARNING
from typing import Any

from awa_py.observability.logs import LogThrottle
from awa_py.observability.metrics import Metrics
from awa_py.text import class_name, describe, ordinal
from awa_py.worker.claimed_job import ClaimedJob
from awa_py.worker.event_log import EventLog
from awa_py.worker.outcome_table import OutcomeRule


class OutcomeReporter:
    """Updates the metrics and the event log, and writes log lines, as the table of outcomes says."""

    def __init__(self, metrics: Metrics, event_log: EventLog, log_throttle: LogThrottle) -> None:
        self._metrics = metrics
        self._event_log = event_log
        self._log_throttle = log_throttle

    def report(
        self,
        rule: OutcomeRule[Any, Any],
        jobs: Sequence[ClaimedJob],
        written: Mapping[int, Any] | None,
        counts: Mapping[str, int],
    ) -> None:
        """Report jobs that were ours. `written`: see `OutcomeRule.write`; `counts`: their number by queue."""
        if rule.counter is not None:
            for queue, count in counts.items():
                rule.counter(self._metrics).labels(queue).inc(count)
        if rule.event is not None:
            self._event_log.add(rule.event, jobs, rule.event_detail)
        if rule.report is not None and written is not None:
            self._report_each(rule, jobs, written)

    def _report_each(self, rule: OutcomeRule[Any, Any], jobs: Sequence[ClaimedJob], written: Mapping[int, Any]) -> None:
        assert rule.report is not None
        events: dict[str, list[ClaimedJob]] = defaultdict(list)
        for job in jobs:
            report = rule.report(job, job.outcome, written[job.id])
            if report is None:
                continue
            if report.counter is not None:
                labels = (job.queue,) if report.reason is None else (job.queue, report.reason)
                report.counter(self._metrics).labels(*labels).inc()
            if report.event is not None:
                events[report.event].append(job)
            self._log(report.level, job, report.topic, report.message, *report.values, exception=report.exception)
        for event, its_jobs in events.items():
            self._event_log.add(event, its_jobs)

    def report_lost(self, jobs: Iterable[ClaimedJob], action: str) -> None:
        """Report jobs that were not ours. `action`: see `OutcomeRule`."""
        for job in jobs:
            self._metrics.lost_leases.inc()
            message = "%s: the lease was lost before the %s attempt could %s: nothing was changed"
            self._log(WARNING, job, "lost", message, job, ordinal(job.attempt), action)

    def report_unsure(self, jobs: Iterable[ClaimedJob]) -> None:
        """Report jobs that were not ours in a repeated write: the first one may have ended them."""
        for job in jobs:
            message = "%s: the connection broke during the write: the outcome was written, or the lease was lost"
            self._log(INFO, job, "unsure", message, job)

    def report_unstorable(self, job: ClaimedJob, error: Exception) -> None:
        """Report a job whose outcome PostgreSQL cannot store, not even as a failure."""
        message = "%s: its outcome cannot be stored, a rescue will end the job: %s"
        self._log(ERROR, job, "unstorable", message, job, describe(error))

    def _log(
        self,
        level: int,
        job: ClaimedJob,
        topic: str,
        message: str,
        *values: object,
        exception: BaseException | None = None,
    ) -> None:
        """Log a line about a job, throttled with others of the same topic, kind of job and class of error."""
        key = (topic, job.kind, class_name(exception))
        self._log_throttle.log(level, key, message, *values, exc_info=exception, extra=job.fields())
