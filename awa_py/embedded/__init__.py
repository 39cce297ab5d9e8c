"""An embedded PostgreSQL server for development, tests and the demo.

A directory contains one server. Each process that uses it holds a shared lock on the directory, which the kernel
releases however the process ends. A guardian, detached from all of them, runs PostgreSQL as its child:

    users ──shared lock──► directory ◄──watches── guardian ──parent of──► postgres

- The first user starts the guardian; later users attach to it.
- If PostgreSQL dies, the guardian restarts it on the same port.
- When the last user leaves or is killed, the guardian shuts PostgreSQL down and exits.
- If the guardian is killed, the kernel ends PostgreSQL too (Linux), and the next start recovers.
"""

from awa_py.embedded.binaries import find_binaries
from awa_py.embedded.server import EmbeddedPostgres, ShutdownMode

__all__ = ["EmbeddedPostgres", "ShutdownMode", "find_binaries"]
