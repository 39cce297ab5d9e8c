"""Find the workers that an operator names on the command line."""

from collections.abc import Sequence

from awa_py.errors import UnknownWorker
from awa_py.store.workers import WorkerRow

MAX_LISTED = 10


def find_workers(workers: Sequence[WorkerRow], name: str) -> list[WorkerRow]:
    """Return the workers with this label, or the one whose id starts with it. Raise UnknownWorker if there is none.

    A trailing star matches all workers whose name, or else whose id, starts with what precedes it.
    """
    prefix = name.removesuffix("*")
    if prefix != name:
        named = [worker for worker in workers if worker.name.startswith(prefix)]
        found = named or [worker for worker in workers if str(worker.id).startswith(prefix)]
    else:
        found = [worker for worker in workers if worker.label == name] or _by_id(workers, name)
    if not found:
        raise UnknownWorker(f'there is no worker "{name}"; {_known(workers)}')
    return found


def _by_id(workers: Sequence[WorkerRow], prefix: str) -> list[WorkerRow]:
    found = [worker for worker in workers if prefix and str(worker.id).startswith(prefix.lower())]
    if len(found) > 1:
        ids = ", ".join(str(worker.id) for worker in found)
        raise UnknownWorker(f'several worker ids start with "{prefix}": {ids}; give more characters')
    return found


def _known(workers: Sequence[WorkerRow]) -> str:
    if not workers:
        return "no worker is registered"
    more = f" and {len(workers) - MAX_LISTED} more" if len(workers) > MAX_LISTED else ""
    return f"the workers are {', '.join(worker.name for worker in workers[:MAX_LISTED])}{more}"
