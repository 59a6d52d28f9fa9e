"""Questions of `kubectl kant`, which the leader answers from the state with which it schedules.

Questions arrive through the API server, which decides who may use the Service (`get` on services/proxy). They are
signed, to prove that the caller may read the leader's Lease (connect/ticket.py). Unsigned questions are not answered.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web

from kant.kube.connect.ticket import NOT_YET, PATH, is_signed
from kant.kube.serve.led_run import NotLeadingError
from kant.kube.serve.server import failure
from kant.model.errors import InputError

WORDS = ("why", "eta", "queue", "top")
WIDEST = 10_000


class NotYetError(InputError):
    """The answer is still being computed: ask again."""

    reason = NOT_YET


class NoForecastError(InputError):
    """This replica has no forecasts."""

    reason = "NoForecast"


@dataclass(frozen=True, slots=True)
class Question:
    """A question about the pod or job `name` in a namespace; if `name` is "", about all. `word` names the question.

    With `brief` the answer does not wait for a forecast. It is JSON, or text with lines of up to `columns` characters
    (0: unlimited), with or without colours.
    """

    word: str
    namespace: str
    name: str
    json: bool
    columns: int
    colours: bool
    brief: bool = False


def routes(ticket: str, answer: Callable[[Question], Awaitable[bytes]]) -> list[web.RouteDef]:
    """Return the routes for questions. `answer` may raise NotLeadingError, NotYetError, NoForecastError, and InputError
    for an invalid question."""

    async def handler(request: web.Request) -> web.StreamResponse:
        if not is_signed(ticket, request.raw_path):
            return failure("expected a signature with the ticket on the leader's Lease", 401, "Unauthorized")
        try:
            return web.Response(body=await answer(_question(request)), headers={"Cache-Control": "no-store"})
        except (NotLeadingError, NotYetError, NoForecastError) as error:
            return failure(str(error), 503, error.reason)
        except InputError as error:
            return failure(str(error), 400)

    return [web.get(f"{PATH}{{word}}", handler)]


def _question(request: web.Request) -> Question:
    word, query = request.match_info["word"], request.query
    columns = query.get("columns", "0")
    if word not in WORDS:
        raise InputError("the question", f"one of {', '.join(WORDS)}", word)
    if not (columns.isascii() and columns.isdigit() and int(columns) <= WIDEST):
        raise InputError("columns", f"a whole number up to {WIDEST:,}", columns)
    about = query.get("namespace", ""), query.get("name", "")
    return Question(word, *about, "json" in query, int(columns), "colours" in query, "brief" in query)
