"""A PostgreSQL of awa's own: nothing to install, nothing to administer.

A directory holds one server. Every process that uses it holds a shared lock on the directory; the kernel
drops that lock however the process ends. A guardian, detached from all of them, runs PostgreSQL as its child:

    users ──shared lock──► directory ◄──watches── guardian ──parent of──► postgres

- The first user starts the guardian; later ones find it and attach.
- PostgreSQL dies unexpectedly: the guardian starts it again, at the same port.
- The last user leaves, or is killed: the guardian shuts PostgreSQL down and exits.
- The guardian is killed: the kernel takes PostgreSQL down with it (Linux), and the next start recovers.
"""

from awa_py.embedded.binaries import find_binaries
from awa_py.embedded.server import EmbeddedPostgres, ShutdownMode

__all__ = ["EmbeddedPostgres", "ShutdownMode", "find_binaries"]
