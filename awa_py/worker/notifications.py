"""Passes notifications to the parts of the worker that they concern."""

from awa_py.db.listener import Topic
from awa_py.store.heartbeat import WorkerInfo
from awa_py.worker.claiming.claim_loop import ClaimLoop
from awa_py.worker.heartbeat import Heartbeat
from awa_py.worker.in_flight import InFlightJobs
from awa_py.worker.outcomes import StopReason


class NotificationDispatcher:
    """Handles the notifications of the workers' channel."""

    def __init__(
        self, worker: WorkerInfo, claim_loop: ClaimLoop, heartbeat: Heartbeat, in_flight: InFlightJobs
    ) -> None:
        self._worker = worker
        self._claim_loop = claim_loop
        self._heartbeat = heartbeat
        self._in_flight = in_flight

    def dispatch(self, topic: str, subject: str) -> None:
        match topic:
            case Topic.READY:
                self._claim_loop.wake(subject)
            case Topic.QUEUES if subject in self._worker.queues:
                self._heartbeat.send_now()
            case Topic.WORKERS if subject == str(self._worker.id):
                self._heartbeat.send_now()
            case Topic.CANCEL:
                self._request_stop(subject, StopReason.CANCELLED)
            case Topic.LOST:
                self._request_stop(subject, StopReason.LEASE_LOST)

    def _request_stop(self, subject: str, reason: StopReason) -> None:
        job_id, _, lease = subject.partition(":")
        job = self._in_flight.get(int(job_id))
        if job is not None and job.lease == int(lease):
            job.request_stop(reason)
