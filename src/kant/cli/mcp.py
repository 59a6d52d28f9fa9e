"""`kant mcp`: serves tools for a cluster to an AI assistant, by the Model Context Protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from kant.cli.ops_options import Where
from kant.model.errors import InputError


def mcp(
    *,
    http: Annotated[
        str | None,
        Parameter(help="Serve streamable HTTP at this address, such as 127.0.0.1:5270. Default: standard input."),
    ] = None,
    token_file: Annotated[
        Path | None, Parameter(help="With --http, if no Kant runs: the file of tokens (`kant token new`).")
    ] = None,
    traces: Annotated[
        Path | None, Parameter(help="Record the actions of assistants in this folder, for `kant ops runbooks compile`.")
    ] = None,
    runbooks: Annotated[
        Path | None,
        Parameter(help="Allow assistants to read the runbooks of this folder (`kant ops runbooks compile`)."),
    ] = None,
    where: Where = Where(),  # noqa: B008 - it is frozen
) -> int:
    """Let an assistant look at a cluster, rehearse and act, by the Model Context Protocol.

    Over standard input it has the rights of the user who starts it, over HTTP those of the token that it presents."""
    from kant.ops.mcp_server import make_server

    record = None
    if traces is not None:
        from kant.ops.record import TraceRecorder

        record = TraceRecorder(traces).note
    books = None
    if runbooks is not None:
        from kant.ops.memory.runbooks import texts_of

        books = texts_of(runbooks)
    opening = where.opening(token_file)
    if http is None:
        own = opening.desk("mcp")
        make_server(lambda token: own, record=record, runbooks=books).run("stdio")
        return 0
    host, colon, port = http.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InputError("--http", "an address and a port, such as 127.0.0.1:5270", http)
    server = make_server(opening.desks("mcp"), f"http://{http}", record, books)
    server.run("streamable-http", host=host.strip("[]"), port=int(port), stateless_http=False)
    return 0
