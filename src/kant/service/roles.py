"""Authorization: the roles, and the role that each route needs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from kant.model.errors import InputError


class Role(StrEnum):
    """The role of a token. A viewer reads; a tenant also gives orders, in its queues; an operator may do everything."""

    VIEWER = "viewer"
    TENANT = "tenant"
    OPERATOR = "operator"


RANK = {role: rank for rank, role in enumerate(Role)}


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated caller. `origin` is its address, or the process at the other end of the socket.

    `is_unix`: the caller is a user of this machine, according to the socket, and owns all jobs that it submitted.
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
    """The least role that a route needs. `own`: a tenant may use the route only for jobs of its own queues."""

    least: Role
    own: bool = False


VIEWER, TENANT, OPERATOR = Right(Role.VIEWER), Right(Role.TENANT, own=True), Right(Role.OPERATOR)
RIGHTS = {
    "jobs": VIEWER,
    "waiting": VIEWER,
    "outcome": VIEWER,
    "usage": VIEWER,
    "job": VIEWER,  # without command, environment and folders of other users' jobs: see `LocalQuestions.job`
    "why": VIEWER,
    "history": VIEWER,
    "queues": VIEWER,
    "eta": VIEWER,
    "top": VIEWER,
    "status": VIEWER,
    "record": VIEWER,
    "events": VIEWER,
    "profiles": VIEWER,
    "whatif": VIEWER,  # a POST, but it changes nothing
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
    "attach": TENANT,  # a tenant only for jobs submitted under its own name: see `check_user`
    "shell": TENANT,
    "reservations": VIEWER,
    "reserve": OPERATOR,
    "unreserve": OPERATOR,
    "pause": OPERATOR,
    "resume": OPERATOR,
    "leave": OPERATOR,
    "audit": OPERATOR,
    "operations": OPERATOR,
    "stop": OPERATOR,
}
"""The right that each route needs, by the route's name. A route that is not listed is for operators."""


class ForbiddenError(InputError):
    """The caller may not do this."""


def check_role(caller: Caller, route: str) -> None:
    """Raise ForbiddenError unless the caller's role may use the route."""
    least = RIGHTS.get(route, OPERATOR).least
    if RANK[caller.role] < RANK[least]:
        raise ForbiddenError(f"the token of {caller.user}", f"role {least} or higher for `{route}`", str(caller.role))


def routes_of(caller: Caller) -> tuple[str, ...]:
    """Return the names of the routes that the caller's role may use; some apply only to the caller's own jobs."""
    return tuple(sorted(route for route, right in RIGHTS.items() if RANK[caller.role] >= RANK[right.least]))


def check_user(caller: Caller, route: str, user: str) -> None:
    """Raise ForbiddenError unless the job's user is the caller. An operator may use the route for all jobs."""
    if caller.role is not Role.OPERATOR and caller.user != user:
        raise ForbiddenError(f"the token of {caller.user}", f"a job of {caller.user} for `{route}`", f"a job of {user}")


def owns(caller: Caller, lineage: Iterable[str], user: str) -> bool:
    """Return whether a job is the caller's own; `lineage` is its queue with the ancestors, `user` the submitter."""
    if caller.role is not Role.TENANT:
        return caller.role is Role.OPERATOR
    return (caller.is_unix and caller.user == user) or not set(lineage).isdisjoint(caller.queues)


def check_own(caller: Caller, route: str, lineage: Iterable[str], user: str) -> None:
    """Raise ForbiddenError unless the caller may use the route for a job of `user` in the first queue of `lineage`."""
    check_role(caller, route)
    path = tuple(lineage)
    if RIGHTS.get(route, OPERATOR).own and not owns(caller, path, user):
        if caller.is_unix and not caller.queues:
            raise ForbiddenError(caller.user, f"one of their own jobs for `{route}`", f"a job of {user}")
        mine = ", ".join(caller.queues)
        raise ForbiddenError(f"the token of {caller.user}", f"a job in its queues ({mine}) for `{route}`", path[0])


def check_queue(caller: Caller, route: str, lineage: Iterable[str]) -> None:
    """Raise ForbiddenError unless the caller may submit to the first queue of `lineage`."""
    check_own(caller, route, lineage, caller.user if not caller.queues else "")
