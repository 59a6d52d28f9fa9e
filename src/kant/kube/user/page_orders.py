"""Orders from the web page: each is sent with the caller's bearer token, never with Kant's own.

So the API server decides by the caller's roles, as with kubectl. A token is used for one order, and is neither stored
nor logged.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from aiohttp import web

from kant.kube.connect.client import ApiClient, ApiError
from kant.kube.connect.config import Config
from kant.kube.connect.credentials import Bearer
from kant.kube.connect.errors import advice
from kant.kube.serve.page import Handler, StrangerError
from kant.model.errors import InputError

if TYPE_CHECKING:
    from kant.kube.user.orders import Orders

Act = Callable[[web.Request], Awaitable[Any]]
TOKEN = re.compile(r"Bearer ([A-Za-z0-9\-._~+/]{1,16384}=*)")
YOU = "the token that the page was given"
JOB_ORDERS = ("hold", "release", "update", "cancel")
QUEUE_ORDERS = ("hold", "release", "drain")
NODE_ORDERS = ("drain", "release")
PLAN_ORDERS = ("plan", "apply", "undo")
REVIEWS = {
    "order_queue": {"group": "scheduling.kant.dev", "resource": "queues", "verb": "patch"},
    "order_node": {"group": "scheduling.kant.dev", "resource": "reservations", "verb": "create"},
}
"""The right that a caller needs for orders about cluster-scoped objects, by the kind of order."""


class NoTokenError(InputError):
    """The request has no token."""

    def __init__(self) -> None:
        super().__init__(
            "Authorization", "your own bearer token (`kubectl create token`): Kant carries out no orders for you"
        )


class Desk(Protocol):
    """Plans and carries out the orders of one caller, as `kant ops` does. Each method raises InputError."""

    def plan(self, orders: Any) -> dict[str, Any]: ...
    def apply(self, plan_id: str, reason: str, approved: str = "") -> dict[str, Any]: ...
    def undo(self, txn: str, reason: str) -> dict[str, Any]: ...


class Planned(msgspec.Struct, forbid_unknown_fields=True):
    """A request of the page to plan `orders`, to apply the plan `id`, or to undo the transaction `id`.

    `agreed`: the user was asked, and agrees to a plan beyond the limits.
    """

    orders: list[dict[str, Any]] = []
    id: str = ""
    reason: str = ""
    agreed: bool = False


class PageOrders:
    """Sends callers' orders to the API server of `config`. `desk` makes a desk for plans from the caller's Config."""

    def __init__(self, config: Config, scheduler_name: str, desk: Callable[[Config], Desk]) -> None:
        self.own, self.desk = config, desk
        self.config = replace(config, certificate=None, key=None, source=YOU)
        self.scheduler_name = scheduler_name

    def routes(self) -> list[tuple[str, Handler]]:
        """Return the paths of the orders, each with its handler."""
        found: list[tuple[str, Act]] = [(f"/v1/jobs/{{job}}/{order}", partial(self.job, order)) for order in JOB_ORDERS]
        found += [(f"/v1/operations/{act}", partial(self.planned, act)) for act in PLAN_ORDERS]
        for kind, orders in (("queue", QUEUE_ORDERS), ("node", NODE_ORDERS)):
            found += [(f"/v1/{kind}s/{{name}}/{order}", partial(self.thing, kind, order)) for order in orders]
        return [(path, partial(_answer, act)) for path, act in found]

    async def operations(self) -> list[Any]:
        """Return the latest plans and actions, if Kant itself may read them. Raises InputError."""
        from kant.kube.user.operations import latest

        return await latest(self.own)

    def client(self, request: web.Request) -> ApiClient:
        """Return a client with the rights of the caller. Raises NoTokenError."""
        return ApiClient(self.theirs(request), concurrency=16, timeout=30.0)

    def theirs(self, request: web.Request) -> Config:
        """Return the configuration of the API server with the rights of the caller. Raises NoTokenError."""
        found = TOKEN.fullmatch(request.headers.get("Authorization", ""))
        if found is None:
            raise NoTokenError
        return replace(self.config, credentials=Bearer(found[1]))

    async def caller(self, request: web.Request) -> tuple[str, list[str]]:
        """Return the caller's name ("": no token), and the orders that they may give. Raises StrangerError."""
        if "Authorization" not in request.headers:
            return "", []
        try:
            return await self._known(request)
        except (InputError, ApiError) as error:
            raise StrangerError(*refusal(error)) from None

    async def _known(self, request: web.Request) -> tuple[str, list[str]]:
        from kant.kube.user.reviews import may, own_name  # imported with the first sign-in

        async with self.client(request) as client:
            user = await own_name(client)
            return user, [*JOB_ORDERS, "plan", *[name for name in REVIEWS if await may(client, REVIEWS[name])]]

    async def job(self, order: str, request: web.Request) -> dict[str, list[str]]:
        """Carry out an order about a job. The body of `update` has a priority; null: that of its PriorityClass."""
        job = request.match_info["job"]
        space, _, name = job.partition("/")
        name = name.partition("~")[0]  # a suffix `~…` distinguishes jobs of the same name
        said = msgspec.json.decode(await request.read() or b"{}") if order == "update" else {}
        async with self.client(request) as client:
            orders = self._orders(client, space)
            if order == "update":
                if not isinstance(said, dict) or list(said) != ["priority"] or not _is_number(said["priority"]):
                    raise InputError("the request", 'a priority, such as {"priority": 5}')
                done = await orders.rank(name, said["priority"])
            else:
                done = await {"hold": orders.hold, "release": orders.release, "cancel": orders.cancel}[order](name)
            return {"jobs": [job] if done else []}

    def _orders(self, client: ApiClient, namespace: str) -> Orders:
        """Return the orders of this client. Their module is imported on first use."""
        from kant.kube.user.orders import Orders

        return Orders(client, namespace, self.scheduler_name, suspends=False)

    async def planned(self, act: str, request: web.Request) -> dict[str, Any]:
        """Plan, apply or undo orders with the desk of the caller."""
        config, said = self.theirs(request), msgspec.json.decode(await request.read(), type=Planned)

        def inside() -> dict[str, Any]:
            own = self.desk(config)
            if act == "plan":
                return own.plan(said.orders)
            if act == "apply":
                return own.apply(said.id, said.reason, "on the page" if said.agreed else "")
            return own.undo(said.id, said.reason)

        return await asyncio.to_thread(inside)

    async def thing(self, kind: str, order: str, request: web.Request) -> dict[str, bool]:
        """Carry out an order about a queue or a node."""
        target = f"{kind}/{request.match_info['name']}"
        async with self.client(request) as client:
            orders = self._orders(client, "")
            act = {"hold": orders.hold, "release": orders.release, "drain": orders.drain}[order]
            return {"changed": await act(target)}


def refusal(error: Exception) -> tuple[int, str]:
    """Return the HTTP status and the sentence with which a failed order is answered."""
    if isinstance(error, NoTokenError):
        return 401, str(error)
    if isinstance(error, ApiError):
        return (401 if error.code == 401 else 502), advice(error, YOU)
    text = str(error)
    code = re.search(r"\((40[13])\)$", text)
    return (int(code[1]) if code else 400), text


async def _answer(act: Act, request: web.Request) -> web.StreamResponse:
    try:
        body, status = await act(request), 200
    except (InputError, ApiError, msgspec.DecodeError) as error:
        status, sentence = refusal(error)
        body = {"error": sentence}
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json")


def _is_number(value: object) -> bool:
    return value is None or type(value) is int
