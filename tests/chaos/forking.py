"""An app whose handler forks, as multiprocessing does: the child inherits all open files of the worker."""

import multiprocessing
import time

import awa_py as awa

app = awa.App()


@app.job
def fork() -> int:
    """Return the pid of a child that outlives the worker."""
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(3600,))
    child.start()
    assert child.pid is not None
    return child.pid
