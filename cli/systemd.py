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

from .environment import Environment, command
from .output import say

app = typer.Typer(help="Run awa as a service of systemd.", no_args_is_help=True)

UserOption = Annotated[bool, typer.Option("--user", help="For your own account, without root.")]
CommandOption = Annotated[
    str | None,
    typer.Option("--command", metavar="PATH", help="The awa command that the services start; this one unless set."),
]

NEXT = """
Next:
  systemd-sysusers && systemd-tmpfiles --create                   # the user awa, and who may read /etc/awa
  install -m 640 -g awa /etc/awa/example.env /etc/awa/NAME.env    # and write your settings there
  systemctl daemon-reload
  systemctl enable --now awa.target awa-worker@NAME               # awa-maintenance too, for a leader of its own"""

NEXT_FOR_USER = """
Next:
  cp {config}/awa/example.env {config}/awa/NAME.env    # and write your settings there
  systemctl --user daemon-reload
  systemctl --user enable --now awa.target awa-worker@NAME    # awa-maintenance too, for a leader of its own
  loginctl enable-linger    # so that it runs while you are logged out"""


def _parse_kind(text: str) -> str:
    if text not in UNIT_TEMPLATES:
        raise typer.BadParameter(f'there is no "{text}"; there are {", ".join(UNIT_TEMPLATES)}')
    return text


@command(app, "awa systemd show worker")
def show(
    env: Environment,
    what: Annotated[
        str | None,
        typer.Argument(
            parser=_parse_kind, metavar="WHAT", help=f"{', '.join(UNIT_TEMPLATES)}; all of them unless set."
        ),
    ] = None,
    user: UserOption = False,
    start: CommandOption = None,
) -> None:
    """Print the unit files that fit this installation."""
    made = _files(Path("/"), user, start)
    if what is not None and what not in made:
        raise typer.BadParameter(f"{what} is for the system: a user needs none")
    for name, file in made.items():
        if what is None:
            say(f"# {file.path}")
        if what in (None, name):
            say(file.text if what is None else file.text.rstrip("\n"))


@command(app, "awa systemd install --user", name="install")
def install_files(
    env: Environment,
    user: UserOption = False,
    prefix: Annotated[
        Path, typer.Option(metavar="DIR", help="Another root, for packages and images.", show_default=False)
    ] = Path("/"),
    start: CommandOption = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that were edited.")] = False,
) -> None:
    """Write the unit files, and say what to do next. Nothing is started."""
    if user and prefix != Path("/"):
        raise typer.BadParameter("use either --user or --prefix, not both")
    for path, done in install(_files(prefix, user, start), force=force).items():
        say(f"{done:9} {path}")
    if prefix == Path("/"):
        for obstacle in [] if user else command_problems(start or find_command()):
            say(f"\nNote: {obstacle}.")
        say(NEXT_FOR_USER.format(config=_config_home()) if user else NEXT)


def _files(prefix: Path, user: bool, start: str | None) -> dict[str, UnitFile]:
    if start is not None and not start.startswith("/"):
        raise typer.BadParameter("--command begins with a /: systemd looks for it nowhere else")
    base = _config_home() if user else prefix
    return unit_files(base, for_user=user, command=start or find_command(), version=systemd_version())


def _config_home() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME", "")
    return Path(base) if base else Path.home() / ".config"
