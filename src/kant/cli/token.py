"""`kant token`: tokens that give other users access, each with a role."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from kant.cli.inputs import Home, Json
from kant.cli.output import print_json
from kant.model.errors import InputError
from kant.service.client import home_of
from kant.service.roles import Role
from kant.service.tokens import TOKENS, Key, change_keys, fresh_token, make_key, read_keys

token_app = App(name="token", help="Create, list and revoke the tokens of others. Changes take effect at once.")
File = Annotated[Path | None, Parameter(help="The file with the tokens. Default: tokens.toml of the home.")]


@token_app.command
def new(
    *,
    user: Annotated[str, Parameter(help="The user of the token.")],
    role: Annotated[Literal["viewer", "tenant", "operator"], Parameter(help="The role of the token.")],
    queue: Annotated[tuple[str, ...], Parameter(help="A queue of the tenant; may be repeated.")] = (),
    token_file: File = None,
    home: Home = None,
) -> int:
    """Create a token and print it once: only its SHA-256 is stored."""
    token = fresh_token()
    key = make_key(token, user, Role(role), queue)
    change_keys(_file(token_file, home), lambda keys: (*keys, key))
    print(token)
    print(f"token {key.id} of {key.user}, {key.role}: it is not shown again", file=sys.stderr)
    return 0


@token_app.command(name="join")
def join_token(*, home: Home = None) -> int:
    """Print the token with which other machines join this Kant (`kant join`). Whoever has it can run commands here."""
    from kant.local.joined.keys import TOKEN, make_keys
    from kant.service.daemon import JOIN

    folder = home_of(home) / JOIN
    make_keys(folder)
    print((folder / TOKEN).read_text(encoding="ascii"), end="")
    return 0


@token_app.command(name="list")
def list_tokens(*, token_file: File = None, home: Home = None, json: Json = False) -> int:
    """List the tokens that were created, without the secret parts."""
    from kant.cli.show import console, print_table

    keys = _keys(_file(token_file, home))
    rows = [
        {"id": key.id, "user": key.user, "role": str(key.role), "queues": list(key.queues), "made": key.made}
        for key in keys
    ]
    if json:
        print_json({"tokens": rows})
    elif not rows:
        console.print("no tokens (kant token new creates one)")
    else:
        cells = [
            [", ".join(value) if isinstance(value, list) else str(value) for value in row.values()] for row in rows
        ]
        print_table(list(rows[0]), cells, left=rows[0], frame=False)
    return 0


@token_app.command
def revoke(
    id: Annotated[str, Parameter(help="The id of a token, as `kant token list` shows it.")],
    /,
    *,
    token_file: File = None,
    home: Home = None,
) -> int:
    """Revoke a token. Requests with it are refused from now on, and its open streams end."""
    from kant.cli.show import console

    def without(keys: tuple[Key, ...]) -> tuple[Key, ...]:
        if all(key.id != id for key in keys):
            raise InputError("ID", "the id of a token (see `kant token list`)", id)
        return tuple(key for key in keys if key.id != id)

    change_keys(_file(token_file, home), without)
    console.print(f"revoked {id}")
    return 0


def _file(given: Path | None, home: Path | None) -> Path:
    return given.absolute() if given is not None else home_of(home) / TOKENS


def _keys(path: Path) -> tuple[Key, ...]:
    return read_keys(path, "the owner") if path.exists() else ()
