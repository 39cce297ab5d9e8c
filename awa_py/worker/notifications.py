"""Passes notifications to the parts of the worker that they concern."""

from awa_py.db.listener import Notification, Topic
from awa_py.store.heartbeat import WorkerInfo
from awa_py.worker.claiming.claim_loop import ClaimLoop
from awa_py.worker.heartbeat import Heartbeat
from awa_py.worker.in_flight import InFlightJobs


class NotificationDispatcher:
    """Handles the notifications of the workers' channel."""

    def __init__(
        self, worker: WorkerInfo, claim_loop: ClaimLoop, heartbeat: Heartbeat, in_flight: InFlightJobs
    ) -> None:
        self._worker = worker
        self._claim_loop = claim_loop
        self._heartbeat = heartbeat
        self._in_flight = in_flight

    def dispatch(self, notification: Notification) -> None:
        subject = notification.subject
        match notification.topic:
            case Topic.READY:
                self._claim_loop.wake(subject)
            case Topic.QUEUES if subject in self._worker.queues:
                self._heartbeat.send_now()
            case Topic.WORKERS if subject == str(self._worker.id):
                self._heartbeat.send_now()
            case Topic.CANCEL | Topic.LOST:
                job_id, lease = notification.job
                job = self._in_flight.get(job_id)
                if job is not None and job.lease == lease:
                    self._heartbeat.check_lease(job)
