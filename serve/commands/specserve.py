"""The command `specserve`: its options, the socket, and how the server ends."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mxspec.formats.errors import MxspecError
from mxspec.runtime.cli.option_groups import Bytes, GroupedCommand, option
from mxspec.serve.http.limits import MIB, Limits

if TYPE_CHECKING:
    from mxspec.runtime.settings import TypedControlTokens
    from mxspec.serve.engines.service import Service

FILE = click.Path(path_type=Path)
SEND_BYTES = 128 << 10
NETWORK, WORK, LIMITS, ACCESS = "Network", "Work", "Limits", "Access and log"
DEFAULTS = Limits()
OPTIONS: Sequence[tuple[str, str, float, str]] = (
    ("--queue", "queue", 0, "Number of texts that may wait for a model."),
    ("--time-limit", "time_seconds", 0.1, "Most seconds that a request may take."),
    ("--body-limit", "body_bytes", 0.001, "Most MiB of a request's body."),
    ("--n-limit", "n", 1, "Most texts that a request may ask for of a prompt."),
    ("--prompts-limit", "prompts", 1, "Most prompts of a request."),
    ("--stall", "stall_seconds", 0.1, "Seconds after which a client that reads nothing is disconnected."),
    ("--connections", "connections", 1, "Most connections open at the same time."),
    ("--grace", "grace_seconds", 0.0, "Seconds that running requests have to finish after SIGTERM."),
)
Function = Callable[..., Any]


def limit_options(command: Function) -> Function:
    """An option for each field of Limits, under the field's name; the limit of bodies in MiB."""
    for name, field, least, about in reversed(OPTIONS):
        default = DEFAULTS.body_bytes / MIB if field == "body_bytes" else getattr(DEFAULTS, field)
        kind = click.IntRange(int(least)) if isinstance(default, int) else click.FloatRange(least)
        about = f"{about}  [default: {default:g}]"
        command = option(LIMITS, name, field, type=kind, default=default, help=about)(command)
    return command


@click.command(cls=GroupedCommand)
@click.version_option(package_name="mxspec")
@click.argument("bundles", nargs=-1, required=True, type=FILE, metavar="BUNDLE...")
@option(NETWORK, "--host", default="127.0.0.1", help="Address to listen on.  [default: 127.0.0.1]")
@option(
    NETWORK,
    "--port",
    default=8080,
    type=click.IntRange(0, 65535),
    help="Port to listen on; 0 takes a free one.  [default: 8080]",
)
@option(
    WORK,
    "--slots",
    type=click.IntRange(1),
    default=8,
    help="Number of texts that a model writes at the same time.  [default: 8]",
)
@option(WORK, "--threads", type=click.IntRange(1), help="Number of threads.  [default: all cores]")
@option(
    WORK,
    "--shared-suffixes",
    "shared_mib",
    type=click.IntRange(0),
    default=0,
    metavar="MIB",
    help="Memory for past answers, from which suffix decoding drafts; each key has its own.  [default: 0]",
)
@option(
    WORK,
    "--cache-memory",
    type=Bytes(),
    help="Most memory of a model's key-value caches, such as 2GiB: past beginnings are dropped for it, and new texts "
    "wait.  [default: what all slots need]",
)
@option(
    WORK,
    "--idle-minutes",
    type=click.FloatRange(0),
    default=10,
    help="Time without a request until past beginnings are dropped and their memory is given back; 0: never.  "
    "[default: 10]",
)
@option(
    WORK,
    "--prompt-cache",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Keep what slots hold in DIR when the server ends, for when it starts again.  [default: nowhere]",
)
@option(
    WORK,
    "--alias",
    multiple=True,
    metavar="NAME=ID",
    help="Further name of a model; NAME alone is one of the first. May be given several times.",
)
@option(
    WORK,
    "--typed-control-tokens",
    type=click.Choice(["control", "text"]),
    default="control",
    help="What a control token in a message, such as <|im_end|>, is: the control token, as in transformers, or plain "
    "text.  [default: control]",
)
@limit_options
@option(
    ACCESS,
    "--api-key-file",
    type=FILE,
    metavar="FILE",
    help="File of API keys, one a line.  [default: no key is needed]",
)
@option(
    ACCESS,
    "--allow-origin",
    multiple=True,
    metavar="ORIGIN",
    help="Origin whose web pages may send requests; * allows all. May be given several times.",
)
@option(
    ACCESS,
    "--allow-host",
    multiple=True,
    metavar="NAME",
    help="Further host name that a server on a loopback address answers to. May be given several times.",
)
@option(ACCESS, "--page/--no-page", default=True, help="Serve the web page at /.  [default: yes]")
@option(ACCESS, "--access-log/--no-access-log", default=True, help="Log each answer as a line of JSON.  [default: yes]")
def specserve(
    bundles: tuple[Path, ...],
    host: str,
    port: int,
    slots: int,
    threads: int | None,
    shared_mib: int,
    cache_memory: int | None,
    idle_minutes: float,
    prompt_cache: Path | None,
    alias: tuple[str, ...],
    typed_control_tokens: TypedControlTokens,
    api_key_file: Path | None,
    allow_origin: tuple[str, ...],
    allow_host: tuple[str, ...],
    page: bool,
    access_log: bool,
    **given: Any,
) -> int:
    """Serve BUNDLEs by OpenAI's API, and show them on a page.

    A bundle's id is the name of its folder without .bundle; the fp16 target of one that holds it is served, too, as
    ID-fp16. docs/serve.md says which routes and fields there are.

    \b
    specserve my.bundle
    curl http://127.0.0.1:8080/v1/completions -H 'Content-Type: application/json' \\
        -d '{"model": "my", "prompt": "Once upon a time"}'
    """
    from mxspec.serve.app import Access, build_app
    from mxspec.serve.engines.models import aliases_of, models_of
    from mxspec.serve.engines.service import Service
    from mxspec.serve.http.hosts import is_loopback
    from mxspec.serve.http.keys import kept_salt, new_salt, read_keys
    from mxspec.serve.http.log import write_line

    limits = Limits(**{**given, "body_bytes": int(given["body_bytes"] * MIB)})
    keys = [] if api_key_file is None else read_keys(api_key_file)
    access = Access(
        keys=keys,
        origins=allow_origin,
        hosts=allow_host if is_loopback(host) and not keys else None,
        log=write_line if access_log else None,
        page=page,
        salt=new_salt() if prompt_cache is None else kept_salt(prompt_cache),
    )
    models = models_of(bundles)
    service = Service(
        models,
        slots=slots,
        threads=threads,
        limits=limits,
        shared_suffixes=shared_mib * MIB,
        cache_memory=cache_memory,
        idle_seconds=60 * idle_minutes,
        prompt_cache=prompt_cache,
        warn=lambda line: say(f"warning: {line}"),
        aliases=aliases_of(alias, models),
        typed_control_tokens=typed_control_tokens,
    )
    if not keys and not is_loopback(host):
        service.warn(f"whoever reaches {host} may send requests; --api-key-file FILE asks for keys")
    with listen(host, port, limits) as listener:
        _serve(service, build_app(service, access), listener)
    if service.error is not None:
        raise service.error
    return 0


def say(line: str) -> None:
    """Write a line on standard error."""
    print(line, file=sys.stderr, flush=True)


def listen(host: str, port: int, limits: Limits) -> socket.socket:
    """A socket that takes connections; raises MxspecError if the system gives no such socket."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address[:2], family=family, backlog=2048)
    except OSError as error:
        why = (error.strerror or str(error)).partition(" (while")[0]  # Python repeats the address
        other = "; give another --port, such as 0 for a free one" if error.errno == errno.EADDRINUSE else ""
        raise MxspecError(f"--host {host} --port {port}: cannot listen: {why}{other}") from None
    # Connections inherit all three. asyncio would set the first only if the socket named its protocol: without it, the
    # second piece of an answer waits up to 44 ms for the client to acknowledge the first (Nagle's algorithm). No more
    # than SEND_BYTES waits for a client that does not read, so that it is seen to stall, and the system drops what a
    # client has not read some time after the server has closed the connection.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(2e3 * limits.stall_seconds))
    return listener


def _serve(service: Service, app: object, listener: socket.socket) -> None:
    """Answer until a signal, or until a model cannot be loaded."""
    import uvicorn

    from mxspec.serve.http.half_closed import HalfClosable

    limits = service.limits
    host, port = listener.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    class Server(uvicorn.Server):
        """Drains before it closes; what is asked meanwhile is refused."""

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            if service.error is None:
                if service.flights:
                    waits = f"{len(service.flights)} requests may finish within {limits.grace_seconds:g} s"
                    say(f"draining: {waits}; Ctrl-C again ends at once")
                finished, cut = await service.drain(limits.grace_seconds, lambda: self.force_exit)
                say(f"shutting down: {finished} requests finished, {cut} cut off")
            await super().shutdown(sockets)

    config = uvicorn.Config(
        app,  # type: ignore[arg-type]
        loop="asyncio",
        http=HalfClosable,
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=limits.connections,
        timeout_graceful_shutdown=5,
    )
    server = Server(config)

    def loaded() -> None:
        if service.error is None:
            say(f"ready: {url}")
        else:
            server.should_exit = True

    service.on_loaded = loaded
    for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn raises them again when all is done
        signal.signal(number, lambda _number, _frame: None)
    say(f"loading; listening on {url}")
    asyncio.run(server.serve(sockets=[listener]))
