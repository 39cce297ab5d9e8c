"""Which workers of the registry somebody means."""

from collections.abc import Sequence

from awa_py.errors import UnknownWorker
from awa_py.store.queues import WorkerRow

KNOWN_SHOWN = 10


def find_workers(workers: Sequence[WorkerRow], name: str) -> list[WorkerRow]:
    """The workers of that label, else the one whose id begins so. With a star, all whose name begins so, else all whose
    id does."""
    beginning = name.removesuffix("*")
    if beginning != name:
        named = [worker for worker in workers if worker.name.startswith(beginning)]
        found = named or [worker for worker in workers if str(worker.id).startswith(beginning)]
    else:
        found = [worker for worker in workers if worker.label == name] or _by_id(workers, name)
    if not found:
        raise UnknownWorker(f'there is no worker "{name}"; {_known(workers)}')
    return found


def _by_id(workers: Sequence[WorkerRow], beginning: str) -> list[WorkerRow]:
    found = [worker for worker in workers if beginning and str(worker.id).startswith(beginning.lower())]
    if len(found) > 1:
        raise UnknownWorker(
            f'"{beginning}" may be any of {", ".join(str(worker.id) for worker in found)}: say more of it'
        )
    return found


def _known(workers: Sequence[WorkerRow]) -> str:
    if not workers:
        return "there are none"
    more = f" and {len(workers) - KNOWN_SHOWN} more" if len(workers) > KNOWN_SHOWN else ""
    return f"there are {', '.join(worker.name for worker in workers[:KNOWN_SHOWN])}{more}"
