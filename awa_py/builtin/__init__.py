"""The kinds that awa brings along: `noop_echo` for demos, and `cmd_exec` for whoever allows it."""

from pathlib import Path

from awa_py.builtin.commands import Commands
from awa_py.builtin.echo import noop_echo
from awa_py.model.registry import Handler, Registry

ECHO = "noop_echo"
EXEC = "cmd_exec"


def add_builtin(registry: Registry, *, exec_root: Path | None, max_result_bytes: int) -> None:
    """Makes them known: `noop_echo` unless the app has a kind of that name, `cmd_exec` where it has a root to stay in.

    An app with a `cmd_exec` of its own cannot have this one too: that is an error.
    """
    if registry.get(ECHO) is None:
        registry.add(Handler.from_function(ECHO, noop_echo))
    if exec_root is not None:
        registry.add(Handler.from_function(EXEC, Commands(exec_root, max_result_bytes=max_result_bytes).cmd_exec))
