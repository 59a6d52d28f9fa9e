"""`kant page` and `kant audit`: the address of Kant's web page, and the audit log."""

from __future__ import annotations

import os
import sys
import time
import webbrowser
from pathlib import Path
from tempfile import mkdtemp
from typing import Annotated

from cyclopts import Parameter

from kant.cli.inputs import Home, Json, whole
from kant.cli.output import print_json
from kant.model.errors import InputError
from kant.service.client import ServiceClient, home_of
from kant.service.tokens import write_private


def url_of(address: str, token: str = "") -> str:
    """Return the address of the web page for a local browser. The part after # is not sent over the network."""
    scheme, _, rest = address.rpartition("://")
    host, _, port = rest.rpartition(":")
    host = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)
    return f"{scheme or 'http'}://{host}:{port}/" + (f"#token={token}" if token else "")


def tell(address: str, token: str) -> None:
    """Print the address of the web page with its token, only to a terminal: others may read other outputs."""
    if sys.stdout.isatty():
        print(f"The page: {url_of(address, token)}", flush=True)


def page(
    *,
    open: Annotated[bool, Parameter(help="Open it in the browser.", negative="")] = False,
    new: Annotated[
        bool, Parameter(help="Create a new token; pages with the old one lose access.", negative="")
    ] = False,
    home: Home = None,
) -> int:
    """Print the address of the page with a token of the caller, who is Kant's owner or another user of this machine.

    With KANT_URL, the address has the token given there.
    """
    place = home_of(home)
    client = ServiceClient(place)
    if client.url:
        if new:
            raise InputError("--new", "Kant on this machine (`kant token new` creates tokens for KANT_URL)")
        client.get("/v1/whoami")  # check that Kant answers and accepts the token
        url = f"{client.url.rstrip('/')}/#token={client.own_token()}"
    else:
        url = _own_url(place, new)
    print(url)
    if open and not _open(place, url):
        raise InputError("--open", "a browser on this machine (open the address yourself)")
    return 0


def _own_url(home: Path, new: bool) -> str:
    """Return the address, for the caller, of the web page of the Kant with this home. Raises InputError."""
    client = ServiceClient(home, here=True)
    if home.is_dir() and os.geteuid() not in (0, home.stat().st_uid):
        found = client.get("/v1/whoami", page="new" if new else "same")
        address, token = found["address"], found["page"]
    else:
        from kant.service.callers import page_token

        address = client.get("/v1/whoami")["address"]
        token = page_token(home, fresh=new) if address else ""
    if not address:
        raise InputError(str(home), "a Kant that listens on an address (it was started with --listen none)")
    return url_of(address, token)


def _open(home: Path, url: str) -> bool:
    """Open the browser with a private file that has the URL: all users can read the arguments of a process."""
    way = (home if os.access(home, os.W_OK) else Path(mkdtemp(prefix="kant-"))) / "page.html"
    write_private(way, f'<!doctype html><meta http-equiv="refresh" content="0;url={url}"><a href="{url}">Kant</a>\n')
    return webbrowser.open(way.as_uri())


def audit(
    *,
    user: Annotated[str, Parameter(help="Only entries of this user.")] = "",
    refused: Annotated[bool, Parameter(help="Only refused requests.", negative="")] = False,
    limit: Annotated[int, Parameter(help="The largest number to print, from 1 to 1000.", converter=whole)] = 50,
    before: Annotated[
        int | None, Parameter(help="Only entries before this number, which the previous page printed.", converter=whole)
    ] = None,
    home: Home = None,
    json: Json = False,
) -> int:
    """List the orders that were carried out or refused, the latest first."""
    from kant.cli.show import console, print_table

    found = ServiceClient(home_of(home)).get(
        "/v1/audit", user=user, refused="true" if refused else "", limit=limit, before=before
    )
    if json:
        print_json(found)
        return 0
    rows = []
    for row in found["deeds"]:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(row["time"] / 1e6))
        origin = row["who"].partition(" ")[2].strip("()")
        rows.append((at, row["user"], row["role"], row["verb"], row["what"], row["refused"], origin))
    if rows:
        columns = ("time (UTC)", "user", "role", "order", "about", "refused", "from")
        print_table(columns, rows, left=columns, frame=False)
    else:
        console.print("no entries")
    if found["next"] is not None:
        console.print(f"more: kant audit --before {found['next']}", style="dim")
    return 0
