"""An app with a handler that forks, as multiprocessing does: the child has all that the worker has open."""

import multiprocessing
import time

import awa_py as awa

app = awa.App()


@app.job
def fork() -> int:
    """The child's pid. It outlives a worker that is killed."""
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(3600,))
    child.start()
    assert child.pid is not None
    return child.pid
