"""awa health"""

import http.client
import json
import sys
from typing import Annotated
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

import typer

from .environment import Environment
from .errors import fail
from .metrics import LOOPBACK
from .output import print_json

ANYWHERE = {"0.0.0.0": LOOPBACK, "::": "::1", "": LOOPBACK}  # where it is served everywhere, it is served here


def health(
    env: Environment,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=1,
            max=65535,
            envvar="AWA_METRICS_PORT",
            metavar="PORT",
            help="The metrics port of the worker or leader.",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(envvar="AWA_METRICS_HOST", metavar="HOST", help="The address that it serves on.")
    ] = LOOPBACK,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="Ask there instead: http://host:port, without a path.")
    ] = None,
    live: Annotated[
        bool,
        typer.Option("--live/--ready", help="Whether it is alive, or ready for work."),
    ] = False,
    timeout: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="How long to wait for an answer.")] = 5.0,
) -> None:
    """Ask a worker or a leader how it is, for a container's probe.

    Prints what it says as JSON. Exit 0: it is well; 1: it is not, or does not answer.
    """
    if url is None and port is None:
        raise typer.BadParameter("whom to ask: use --port, AWA_METRICS_PORT or --url")
    place = f"{(url or _url(host, port)).rstrip('/')}/{'healthz' if live else 'readyz'}"
    status, text = _ask(place, timeout)
    try:
        answer = json.loads(text)
    except ValueError:
        fail(f"{place} answers, but not as awa does: is it the metrics port of a worker or a leader?")
    print_json(answer)
    if status != http.client.OK:
        sys.stdout.flush()
        raise typer.Exit(1)


def _url(host: str, port: int | None) -> str:
    host = ANYWHERE.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _ask(place: str, timeout_s: float) -> tuple[int, bytes]:
    """The status and the body."""
    try:
        # Whatever proxy the environment names: a probe asks the process itself.
        with build_opener(ProxyHandler({})).open(place, timeout=timeout_s) as answer:
            return answer.status, answer.read()
    except HTTPError as error:
        return error.code, error.read()
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        why = getattr(reason, "strerror", None) or reason
        fail(f"nobody answers at {place}: {why}")
