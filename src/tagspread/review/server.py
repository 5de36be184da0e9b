"""``tagspread review``: serve the review page of a run on this machine."""

from __future__ import annotations

import getpass
import secrets
import socket
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from tagspread.errors import TagspreadError
from tagspread.files import refuse_others
from tagspread.review.answers import FOLDER, AnswerStore
from tagspread.review.guard import Guard, is_loopback
from tagspread.review.index import Index, check_images
from tagspread.review.session import Review

PORT = 8765
PORTS = 20  # that are tried, if the first is taken
LOCK = ".server.lock"
TOKEN_BYTES = 24
MISSING = "the review page needs fastapi and uvicorn; run: pip install 'tagspread[review]'"


def serve(
    run: Path,
    index: Index,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    user: str | None = None,
    say: Callable[[str], None],
    opened: Callable[[str], object] | None = None,
) -> None:
    """Serve the review page until the process is interrupted.

    Args:
        run: the run folder.
        index: what was prepared about the run.
        host: address to listen on.
        port: port to listen on; by default the first free one from 8765 on.
        user: name of the person; by default the name of the account.
        say: prints a line.
        opened: called with the address of the page once the server listens.
    """
    check_installed()
    import uvicorn

    from tagspread.review.app import make_app

    missing = check_images(run, index)
    (run / FOLDER).mkdir(exist_ok=True)
    remedy = "open the address that it printed, also for a second person"
    with (
        refuse_others(run / FOLDER / LOCK, run, "is being reviewed", remedy),
        AnswerStore.open(run, create=True) as store,
        _listen(host, port) as listening,
    ):
        token = secrets.token_urlsafe(TOKEN_BYTES)
        app = Guard(
            make_app(Review(run, index, store), user or account()), token, host, (socket.gethostname().lower(),)
        )
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{listening.getsockname()[1]}/{token}/"
        if index.unreadable:
            say(f"note: {len(index.unreadable):,} unlabeled images cannot be read and are not shown")
        if missing:
            say(f"note: {missing:,} unlabeled images are missing; skip them on the page")
        if not is_loopback(host):
            say(
                f"warning: other machines of the network can reach this server, without encryption. Whoever knows the "
                f"address can see the images of {run} and give answers; stop the server when you are done."
            )
        say(f"review {run} at {address}")
        say("answers are saved at once; stop with Ctrl-C")
        if opened is not None:
            opened(address)
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, server_header=False, lifespan="off", ws="none",
            timeout_graceful_shutdown=3,
        )  # fmt: skip
        uvicorn.Server(config).run(sockets=[listening])
    say(f"stopped; the answers are in {run / FOLDER}. Train on them with: tagspread train ... --answers {run}")


def check_installed() -> None:
    """Raise unless the packages of the server are installed."""
    if any(find_spec(name) is None for name in ("fastapi", "uvicorn")):
        raise TagspreadError(MISSING)


def account() -> str:
    """Return the name of the account that runs the server."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return "reviewer"


def _listen(host: str, port: int | None) -> socket.socket:
    """Return a listening socket; raise if no port is free."""
    error: OSError | None = None
    for candidate in [port] if port is not None else range(PORT, PORT + PORTS):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((host, candidate))
            listening.listen(128)
            return listening
        except OSError as raised:
            listening.close()
            error = raised
    which = f"port {port}" if port is not None else f"ports {PORT} to {PORT + PORTS - 1}"
    reason = error.strerror if error is not None else ""
    raise TagspreadError(f"the server cannot listen on {host}, {which} ({reason}); choose another port with --port.")
