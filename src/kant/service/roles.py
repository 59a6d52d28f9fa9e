"""Who may do what: one table of roles beside the table of routes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from kant.model.errors import InputError


class Role(StrEnum):
    """What a token is for. A viewer asks; a tenant also orders, in its own queues; an operator may do everything."""

    VIEWER = "viewer"
    TENANT = "tenant"
    OPERATOR = "operator"


RANK = {role: rank for rank, role in enumerate(Role)}


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, by which right, and from where (`origin`: an address, or a process at the other end of the socket).

    `is_unix`: a user of this machine, as the socket says. What it has submitted is its own, in whatever queue.
    """

    user: str
    role: Role
    queues: tuple[str, ...] = ()
    origin: str = ""
    is_unix: bool = False

    def __str__(self) -> str:
        return f"{self.user} ({self.origin})"


@dataclass(frozen=True, slots=True)
class Right:
    """The least role that a route needs. `own`: a tenant has it for the jobs of its own queues alone."""

    least: Role
    own: bool = False


VIEWER, TENANT, OPERATOR = Right(Role.VIEWER), Right(Role.TENANT, own=True), Right(Role.OPERATOR)
RIGHTS = {
    "jobs": VIEWER,
    "waiting": VIEWER,
    "outcome": VIEWER,
    "usage": VIEWER,
    "job": VIEWER,  # without command, environment and folders where it is not one's own: see `Api.job`
    "why": VIEWER,
    "history": VIEWER,
    "queues": VIEWER,
    "eta": VIEWER,
    "top": VIEWER,
    "status": VIEWER,
    "record": VIEWER,
    "events": VIEWER,
    "profiles": VIEWER,
    "whatif": VIEWER,  # an order by its method alone: it changes nothing
    "health": VIEWER,
    "whoami": VIEWER,
    "metrics": VIEWER,
    "schema": VIEWER,
    "submit": TENANT,
    "trial": TENANT,
    "workflow": TENANT,
    "batch": TENANT,
    "cancel": TENANT,
    "hold": TENANT,
    "release": TENANT,
    "requeue": TENANT,
    "update": TENANT,
    "signal": TENANT,
    "log": TENANT,
    "attach": TENANT,  # and of a tenant's jobs those alone that were submitted under the same name: see `check_user`
    "shell": TENANT,
    "reservations": VIEWER,
    "reserve": OPERATOR,
    "unreserve": OPERATOR,
    "pause": OPERATOR,
    "resume": OPERATOR,
    "audit": OPERATOR,
    "operations": OPERATOR,
    "stop": OPERATOR,
}
"""The right that each route needs, by the route's name. One that is not here is for operators."""


class ForbiddenError(InputError):
    """The caller may not do this."""


def check_role(caller: Caller, route: str) -> None:
    """Raise Forbidden unless the caller's role has the route."""
    least = RIGHTS.get(route, OPERATOR).least
    if RANK[caller.role] < RANK[least]:
        raise ForbiddenError(f"the token of {caller.user}", f"one of role {least} for `{route}`", str(caller.role))


def routes_of(caller: Caller) -> tuple[str, ...]:
    """The routes that the caller's role has, by their names; some only for what is the caller's own."""
    return tuple(sorted(route for route, right in RIGHTS.items() if RANK[caller.role] >= RANK[right.least]))


def check_user(caller: Caller, route: str, user: str) -> None:
    """Raise Forbidden unless the job is of the caller's own name. An operator may have the route for all."""
    if caller.role is not Role.OPERATOR and caller.user != user:
        raise ForbiddenError(f"the token of {caller.user}", f"a job of {caller.user} for `{route}`", f"one of {user}")


def owns(caller: Caller, lineage: Iterable[str], user: str) -> bool:
    """Whether a job is the caller's own; `lineage` is its queue and those above that, `user` who submitted it."""
    if caller.role is not Role.TENANT:
        return caller.role is Role.OPERATOR
    return (caller.is_unix and caller.user == user) or not set(lineage).isdisjoint(caller.queues)


def check_own(caller: Caller, route: str, lineage: Iterable[str], user: str) -> None:
    """Raise Forbidden unless the caller may have the route for a job of `user` in the queue that begins `lineage`."""
    check_role(caller, route)
    path = tuple(lineage)
    if RIGHTS.get(route, OPERATOR).own and not owns(caller, path, user):
        if caller.is_unix and not caller.queues:
            raise ForbiddenError(caller.user, f"a job of their own for `{route}`", f"one of {user}")
        mine = ", ".join(caller.queues)
        raise ForbiddenError(f"the token of {caller.user}", f"a job of its own queues ({mine}) for `{route}`", path[0])


def check_queue(caller: Caller, route: str, lineage: Iterable[str]) -> None:
    """Raise Forbidden unless the caller may submit to the queue that `lineage` begins with."""
    check_own(caller, route, lineage, caller.user if not caller.queues else "")
