"""Built-in job kinds: `noop_echo` for demos, `cmd_exec` for operators that allow it, and `awa.flow` for flows."""

from pathlib import Path

from awa_py.builtin.commands import Commands
from awa_py.builtin.echo import noop_echo
from awa_py.model.registry import Handler, Registry

ECHO = "noop_echo"
EXEC = "cmd_exec"


def add_builtin(registry: Registry, *, exec_root: Path | None, max_result_bytes: int) -> None:
    """Register `noop_echo`, unless the app has a kind of that name, and `cmd_exec`, if `exec_root` is given.

    It is an error if `exec_root` is given and the app has its own `cmd_exec`.
    """
    if registry.get(ECHO) is None:
        registry.add(Handler.from_function(ECHO, noop_echo))
    if exec_root is not None:
        registry.add(Handler.from_function(EXEC, Commands(exec_root, max_result_bytes=max_result_bytes).cmd_exec))
