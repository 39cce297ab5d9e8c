"""awa monitoring …"""

import sys
from importlib.resources import files

import typer

from .decorators import command
from .environment import Environment

app = typer.Typer(help="Print the alert rules for Prometheus and the dashboard for Grafana.", no_args_is_help=True)


@command(app, "awa monitoring rules > /etc/prometheus/awa.rules.yml")
def rules(env: Environment) -> None:
    """Print the alert rules for Prometheus."""
    _print("awa.rules.yml")


@command(app, "awa monitoring tests > awa.rules.test.yml && promtool test rules awa.rules.test.yml")
def tests(env: Environment) -> None:
    """Print the unit tests of the alert rules for promtool."""
    _print("awa.rules.test.yml")


@command(app, "awa monitoring dashboard > awa.json")
def dashboard(env: Environment) -> None:
    """Print the dashboard for Grafana."""
    _print("dashboard.json")


def _print(name: str) -> None:
    sys.stdout.write((files("awa_monitoring") / name).read_text(encoding="utf-8"))
