"""`excise serve`: a substrate of this machine for clients on others."""

import asyncio
import json
import logging
import os
import signal
import ssl
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from cyclopts import App, Parameter

from excise.cli.sentences import say
from excise.errors import SpecError

if TYPE_CHECKING:
    from excise.server.server import Server, Settings

app = App(
    name="serve",
    help_epilogue="""\
A client anywhere uses it as any substrate: excise run https://host:8700 -- make; connect("https://host:8700"). The page is \
at /, the OpenAPI document at /openapi.json.

Without --keys the server makes one key for its own life, and clients of the same user on this machine find it by themselves. \
Another address than 127.0.0.1 needs --keys, --tls-cert and --tls-key. Clients say theirs by EXCISE_KEY.

SIGUSR1: --keys is read again; who has a key that was removed is sent away.

SIGTERM or Ctrl-C: no new sandboxes; those there are may end by themselves for --drain; then all are closed. Once more: at once.

Examples:
  excise serve pool:namespace
  excise serve key add trainer --keys keys.json --sandboxes 256
  excise serve pool:docker --listen 0.0.0.0:8700 --name sandboxes.example --keys keys.json --tls-cert c.pem --tls-key k.pem
  excise serve namespace --listen unix:///run/excise.sock
  curl -H "Authorization: Bearer $EXCISE_KEY" http://127.0.0.1:8700/v1/sandboxes""",
)
key_app = App(name="key", help="Make, list and remove the keys that clients come in with.")
app.command(key_app)


@app.default
def serve(
    address: str,
    /,
    *,
    listen: str = "127.0.0.1:8700",
    name: tuple[str, ...] = (),
    keys: Path | None = None,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    state: Path | None = None,
    report: Path | None = None,
    drain: Annotated[str, Parameter()] = "30s",
    log: Annotated[str, Parameter()] = "text",
    own_key: Path | None = None,
    while_stdin: Annotated[bool, Parameter(negative="", show_default=False)] = False,
) -> int:
    """Serve a substrate over the network.

    Parameters
    ----------
    address
        What is served: any address, as pool:namespace.
    listen
        HOST:PORT, or unix:///PATH. Port 0 is any that is free, which is printed.
    name
        A name that clients call this server by, besides its address. More than once for several.
    keys
        The file of keys, made by `excise serve key add`.
    tls_cert
        The certificate chain, as PEM.
    tls_key
        Its private key, as PEM.
    state
        Where it writes down what it holds, for the server after it; else in the user's own runtime directory.
    report
        A directory that `excise report` wrote: the page shows it.
    drain
        How long sandboxes may take to end by themselves when it is stopped.
    log
        text, or json: a line each, on stderr.
    own_key
        Where it writes the key that it makes when it is given none.
    while_stdin
        Stop when standard input ends: for a program that starts it, and may die.
    """
    from excise.cli.pool_options import seconds  # noqa: PLC0415 - `excise serve --help` does not pay for these

    try:
        from excise.server.server import Settings, require_safe  # noqa: PLC0415
    except ImportError as error:
        raise SpecError(f"`excise serve` needs {error.name}: run `pip install 'excise[serve]'`") from None

    if log not in ("text", "json"):
        raise SpecError(f"--log {log}: it is text or json")
    host, port, path = _place(listen)
    settings = Settings(
        host=host, port=port, path=path, names=name, tls=_tls(tls_cert, tls_key), drain_s=seconds(drain, "--drain")
    )
    require_safe(settings, keys=keys is not None)
    _log_to_stderr(as_json=log == "json")
    return asyncio.run(_serve(address, settings, _Told(keys, own_key, state, _report_page(report), while_stdin)))


class _Told(NamedTuple):
    """What else it was told."""

    keys: Path | None
    own_key: Path | None
    state: Path | None
    report: str | None
    while_stdin: bool


async def _serve(address: str, settings: "Settings", told: _Told) -> int:
    from excise.registry import make  # noqa: PLC0415
    from excise.server.host import Host  # noqa: PLC0415
    from excise.server.http import application  # noqa: PLC0415
    from excise.server.keys import OWN, Key, Keys, digest, fresh, read  # noqa: PLC0415
    from excise.server.ledger import Ledger  # noqa: PLC0415
    from excise.server.server import Server  # noqa: PLC0415
    from excise.substrates.remote.where import own_key_path  # noqa: PLC0415

    own = None if told.keys is not None else fresh()
    ours = [Key(name=OWN, sha256=digest(own or ""), sandboxes=4096, snapshots=4096)]
    known = Keys(read(told.keys) if told.keys is not None else ours)
    # Who listens at any port that is free is followed by nobody who could take over.
    named = settings.path or f"{settings.host}-{settings.port or f'any-{os.getpid()}'}"
    ledger = Ledger((told.state or own_key_path(named).parent) / f"{named.strip('/').replace('/', '-')}.ledger")
    host = Host(make(address), ledger, known.by_name)
    server = Server(host, known, settings)
    written: Path | None = None
    try:
        await host.open()
        await server.open(application(server, told.report))
        if own is not None:
            written = told.own_key or own_key_path(settings.path or server.bound.rpartition(":")[2])
            _write_own(written, own)
        say(f"{address} is served at {server.bound}" + ("" if written is None else f"; its key is in {written}"))
        print(server.bound, flush=True)  # noqa: T201 - for who started it with port 0
        if told.keys is not None:
            asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, _know, server, told.keys)
        await _until_told(server, while_stdin=told.while_stdin)
    finally:
        await server.close()
        if written is not None:
            written.unlink(missing_ok=True)
    return 0


def _know(server: "Server", path: Path) -> None:
    """The file of keys has changed."""
    from excise.server.keys import Keys, read  # noqa: PLC0415

    try:
        server.know(Keys(read(path)))
    except SpecError as error:
        say(f"the keys stay as they were: {error}")
    else:
        say(f"{path} was read again: {len(server.keys.by_name)} keys")


async def _until_told(server: "Server", *, while_stdin: bool) -> None:
    """SIGTERM or SIGINT, or the end of standard input: drain; once more: no longer."""
    loop = asyncio.get_running_loop()
    told = [asyncio.Event(), asyncio.Event()]

    def end() -> None:
        (told[1] if told[0].is_set() else told[0]).set()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, end)
    if while_stdin:
        loop.add_reader(0, lambda: None if os.read(0, 4096) else (loop.remove_reader(0), end()))
    await told[0].wait()
    server.host.draining = True
    if server.host.count:
        say(f"{server.host.count} sandboxes may end by themselves for {server.settings.drain_s:g} s; once more ends them now")
    drained, again = asyncio.ensure_future(server.host.drained()), asyncio.ensure_future(told[1].wait())
    await asyncio.wait((drained, again), timeout=server.settings.drain_s, return_when=asyncio.FIRST_COMPLETED)
    drained.cancel()
    again.cancel()
    await asyncio.gather(drained, again, return_exceptions=True)


def _place(listen: str) -> tuple[str, int, str | None]:
    if listen.startswith("unix://"):
        path = listen.removeprefix("unix://")
        if not path.startswith("/"):
            raise SpecError(f"--listen {listen}: a Unix socket is named by its whole path, as unix:///run/excise.sock")
        return "", 0, path
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise SpecError(f"--listen {listen}: it is HOST:PORT, or unix:///PATH")
    return host.strip("[]"), int(port), None


def _tls(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise SpecError("--tls-cert and --tls-key go together")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise SpecError(f"{cert} and {key} are no certificate and its key: {error}") from None
    return context


def _report_page(report: Path | None) -> str | None:
    if report is None:
        return None
    page = report / "index.html" if report.is_dir() else report
    if not page.is_file():
        raise SpecError(f"there is no page at {report}: `excise report RESULTS` writes one")
    return str(page)


def _write_own(path: Path, key: str) -> None:
    """For our own user alone: whoever has it has our sandboxes."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(key + "\n")


class _AsJson(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        said = {"time": record.created, "level": record.levelname.lower(), "what": record.getMessage()}
        if record.exc_info:
            said["trace"] = self.formatException(record.exc_info)
        return json.dumps(said)


def _log_to_stderr(*, as_json: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_AsJson() if as_json else logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%dT%H:%M:%S"))
    logging.getLogger().addHandler(handler)  # what aiohttp and asyncio have to say is a line like ours
    logging.getLogger("excise").setLevel(logging.INFO)


# ---- keys


@key_app.command(name="add")
def add_key(name: str, /, *, keys: Path, sandboxes: int = 64, snapshots: int = 64, rate: float = 0.0) -> int:
    """Make a key. It is printed once, and only its hash is kept.

    Parameters
    ----------
    name
        Whose it is: its sandboxes are told from others' by it.
    keys
        The file of keys; it is made if it is not there.
    sandboxes
        How many it may have at once.
    snapshots
        How many snapshots it may keep.
    rate
        How many calls a second it may make; 0 for no limit.
    """
    from excise.server import keys as known  # noqa: PLC0415

    made = known.fresh()
    known.add(keys, known.Key(name=name, sha256=known.digest(made), sandboxes=sandboxes, snapshots=snapshots, rate=rate))
    print(made)  # noqa: T201 - once, for who asked
    say(f"{keys} has its hash; a server that runs reads it when it is started again, or gets SIGUSR1")
    return 0


@key_app.command(name="list")
def list_keys(*, keys: Path) -> int:
    """List the keys' names and caps.

    Parameters
    ----------
    keys
        The file of keys.
    """
    from excise.server import keys as known  # noqa: PLC0415

    for key in known.read(keys):
        print(f"{key.name}\tsandboxes {key.sandboxes}\tsnapshots {key.snapshots}\trate {key.rate:g}")  # noqa: T201
    return 0


@key_app.command(name="remove")
def remove_key(name: str, /, *, keys: Path) -> int:
    """Remove a key: who has it is sent away, and its sandboxes are closed, once the server gets SIGUSR1 or is started again.

    Parameters
    ----------
    name
        Of the key.
    keys
        The file of keys.
    """
    from excise.server import keys as known  # noqa: PLC0415

    known.remove(keys, name)
    return 0
