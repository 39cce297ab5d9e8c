"""awa systemd"""

import os
from pathlib import Path
from typing import Annotated

import typer

from awa_py.systemd.units import (
    UNIT_TEMPLATES,
    UnitFile,
    command_problems,
    find_command,
    install,
    systemd_version,
    unit_files,
)

from .decorators import command
from .environment import Environment
from .output import say

app = typer.Typer(help="Run awa as a systemd service.", no_args_is_help=True)

UserOption = Annotated[bool, typer.Option("--user", help="For your own account, without root.")]
CommandOption = Annotated[
    str | None,
    typer.Option("--command", metavar="PATH", help="The awa command that the services start. Default: this one."),
]

NEXT = """
Next:
  systemd-sysusers && systemd-tmpfiles --create                   # create the user awa and /etc/awa
  install -m 640 -g awa /etc/awa/example.env /etc/awa/NAME.env    # then write your settings to it
  systemctl daemon-reload
  systemctl enable --now awa.target awa-worker@NAME               # and awa-maintenance, for a dedicated leader"""

NEXT_FOR_USER = """
Next:
  cp {config}/awa/example.env {config}/awa/NAME.env    # then write your settings to it
  systemctl --user daemon-reload
  systemctl --user enable --now awa.target awa-worker@NAME    # and awa-maintenance, for a dedicated leader
  loginctl enable-linger    # so that it runs while you are logged out"""


def _parse_kind(text: str) -> str:
    if text not in UNIT_TEMPLATES:
        raise typer.BadParameter(f'unknown file "{text}": use one of {", ".join(UNIT_TEMPLATES)}')
    return text


@command(app, "awa systemd show worker")
def show(
    env: Environment,
    what: Annotated[
        str | None,
        typer.Argument(parser=_parse_kind, metavar="WHAT", help=f"{', '.join(UNIT_TEMPLATES)}. Default: all."),
    ] = None,
    user: UserOption = False,
    start: CommandOption = None,
) -> None:
    """Print the unit files for this installation."""
    files = _files(Path("/"), user, start)
    if what is not None and what not in files:
        raise typer.BadParameter(f"{what} is only needed without --user")
    for name, file in files.items():
        if what is None:
            say(f"# {file.path}")
        if what in (None, name):
            say(file.text if what is None else file.text.rstrip("\n"))


@command(app, "awa systemd install --user", name="install")
def install_files(
    env: Environment,
    user: UserOption = False,
    prefix: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Root directory, for packages and images. Default: /.", show_default=False),
    ] = Path("/"),
    start: CommandOption = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that were edited.")] = False,
) -> None:
    """Write the unit files and print the next steps. Nothing is started."""
    if user and prefix != Path("/"):
        raise typer.BadParameter("use either --user or --prefix, not both")
    for path, action in install(_files(prefix, user, start), force=force).items():
        say(f"{action:9} {path}")
    if prefix == Path("/"):
        for problem in [] if user else command_problems(start or find_command()):
            say(f"\nNote: {problem}.")
        say(NEXT_FOR_USER.format(config=_config_home()) if user else NEXT)


def _files(prefix: Path, user: bool, start: str | None) -> dict[str, UnitFile]:
    if start is not None and not start.startswith("/"):
        raise typer.BadParameter("--command must be an absolute path")
    base = _config_home() if user else prefix
    return unit_files(base, for_user=user, command=start or find_command(), version=systemd_version())


def _config_home() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME", "")
    return Path(base) if base else Path.home() / ".config"
