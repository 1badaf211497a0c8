"""`holdmq console`: checks that it may listen, and serves until it is stopped.

Each field of ConsoleSettings is an option of the same name. An option that is not given comes from the environment
(HOLDMQ_CONSOLE_<NAME>), or else from the table.
"""

import contextlib
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import click
import redis
import uvicorn
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from holdmq.password import with_password
from holdmq_bridge.auth.records import RecordError
from holdmq_bridge.auth.store import Store
from holdmq_console import certificates
from holdmq_console.app import create_app
from holdmq_console.broker import ServerUrl, store_node
from holdmq_console.connections import bounded
from holdmq_console.settings import PREFIX, ConsoleSettings, is_loopback

TIMEOUT_S = 10.0
SHUTDOWN_S = 3
MAX_HEAD = 131_072  # of a request: its path may have a cursor (MAX_CURSOR)
STARTUP_FAILURE = 3
KINDS: dict[Any, Any] = {int: click.INT, float: click.FLOAT, str: click.STRING}


def _option(name: str, field: FieldInfo) -> click.Option:
    inner = next((one for one in (field.annotation, *get_args(field.annotation)) if one in KINDS), str)
    default = f"default: {field.default}; " if field.default not in (None, "") else ""
    return click.Option(
        [f"--{name.replace('_', '-')}", name],
        type=KINDS[inner],
        default=None,
        help=f"{field.description}  [{default}environment: {PREFIX}{name.upper()}]",
    )


def _settings(given: dict[str, Any]) -> ConsoleSettings:
    try:
        return ConsoleSettings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        if not first["loc"]:
            raise click.UsageError(first["msg"]) from error
        name = ".".join(map(str, first["loc"]))
        raise click.UsageError(f"{name}: {first['msg']} (given: {first['input']!r})") from error


def check_listening(settings: ConsoleSettings, store: Store) -> None:
    """Refuses to listen beyond loopback as long as there are no users.

    Raises:
        click.ClickException: it would.
    """
    if settings.is_local:
        return
    if not store.policy().users:
        raise click.ClickException(
            f"--host {settings.host}: the console listens beyond loopback, or behind a proxy (--trusted-proxies, "
            f"--allowed-hosts), only if there are users; expected `holdmq-bridge auth role add {settings.admin_role}` "
            f"and `holdmq-bridge auth user add NAME --role {settings.admin_role}` before, or --host 127.0.0.1"
        )
    if settings.tls_certificate is None and not is_loopback(settings.host):
        logging.getLogger("holdmq.console").warning(
            "passwords and cookies cross the network unencrypted: set --tls-certificate, or put a proxy with TLS before"
        )


def _check_certificate(settings: ConsoleSettings) -> None:
    for path in (settings.tls_certificate, settings.tls_key):
        if path is not None and not Path(path).is_file():
            raise click.ClickException(f"{path}; expected a PEM file")
    if settings.tls_certificate is not None:
        try:
            certificates.check(settings.tls_certificate, settings.tls_key)
        except (OSError, ValueError) as error:
            files = " ".join(str(one) for one in (settings.tls_certificate, settings.tls_key) if one is not None)
            detail = "expected PEM files with a certificate and its private key, which is not encrypted"
            raise click.ClickException(f"{files}: {error}; {detail}") from error


def url_of(context: click.Context) -> ServerUrl:
    """The server: the options --url and --cluster of `holdmq`. A node of a cluster means the whole cluster."""
    outer = context.parent.params if context.parent is not None else {}
    url = ServerUrl(with_password(outer.get("url") or "redis://127.0.0.1:6379"), bool(outer.get("cluster")))
    return replace(url, is_cluster=url.is_cluster or url.names_node_of_cluster(TIMEOUT_S))


def serve(context: click.Context, **given: Any) -> None:
    """Runs the console."""
    settings = _settings(given)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        url = url_of(context)
        with url.connect_store(TIMEOUT_S) as client:
            check_listening(settings, Store(store_node(client)))
    except (redis.RedisError, redis.exceptions.RedisClusterException, RecordError, ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    scheme = "http" if settings.tls_certificate is None else "https"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    _check_certificate(settings)
    click.echo(f"HoldMQ console: {scheme}://{host}:{settings.port}", err=True)
    app = create_app(url, settings)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
        proxy_headers=bool(settings.proxies),
        forwarded_allow_ips=settings.proxies,
        server_header=False,
        access_log=False,
        log_config=None,
        timeout_graceful_shutdown=SHUTDOWN_S,
        h11_max_incomplete_event_size=MAX_HEAD,
        http=bounded(settings.request_timeout_s, settings.max_connections),
        ws="none",
    )
    config.load()
    app.state.tls = config.ssl
    server = uvicorn.Server(config)
    with contextlib.suppress(KeyboardInterrupt):
        server.run()
    if not server.started:
        raise SystemExit(STARTUP_FAILURE)


command = click.Command(
    "console",
    callback=click.pass_context(serve),
    params=[_option(name, field) for name, field in ConsoleSettings.model_fields.items()],
    help="Serve the web console and the HTTP API until Ctrl-C. The server is that of --url of `holdmq`.",
)
