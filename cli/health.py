"""awa health"""

import http.client
import json
import sys
from typing import Annotated
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

import typer

from awa_py.text import redact

from .environment import Environment
from .errors import fail
from .metrics import LOOPBACK
from .output import print_json

LOCAL_ADDRESSES = {"0.0.0.0": LOOPBACK, "::": "::1", "": LOOPBACK}  # a port on all addresses is also on loopback


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
            help="Metrics port of the worker or leader.",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(envvar="AWA_METRICS_HOST", metavar="HOST", help="Address of the metrics port.")
    ] = LOOPBACK,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="Use this URL instead: http://host:port, without a path.")
    ] = None,
    live: Annotated[
        bool,
        typer.Option("--live/--ready", help="Check that the process is alive, or that it is ready for work."),
    ] = False,
    timeout: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Time to wait for the response.")] = 5.0,
) -> None:
    """Check the health of a worker or leader, for a container's probe.

    Prints its response as JSON. Exits with 0 if it is healthy, and with 1 if it is not or does not respond.
    """
    if url is None and port is None:
        raise typer.BadParameter("no process to check: use --port, AWA_METRICS_PORT or --url")
    if url is not None and redact(url) != url:
        raise typer.BadParameter("--url has a password, which the metrics port does not ask for")
    endpoint = f"{(url or _url(host, port)).rstrip('/')}/{'healthz' if live else 'readyz'}"
    status, body = _get(endpoint, timeout)
    try:
        response = json.loads(body)
    except ValueError:
        fail(f"the response of {endpoint} is not awa's: is it the metrics port of a worker or leader?")
    print_json(response)
    if status != http.client.OK:
        sys.stdout.flush()
        raise typer.Exit(1)


def _url(host: str, port: int | None) -> str:
    host = LOCAL_ADDRESSES.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _get(endpoint: str, timeout_s: float) -> tuple[int, bytes]:
    """Return the status and the body."""
    try:
        # Without the proxies of the environment: a probe must reach the process itself.
        with build_opener(ProxyHandler({})).open(endpoint, timeout=timeout_s) as response:
            return response.status, response.read()
    except HTTPError as error:
        return error.code, error.read()
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        fail(f"no response from {endpoint}: {getattr(reason, 'strerror', None) or reason}")
