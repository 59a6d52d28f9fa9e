"""Selects the world (the cluster on which operations work), the caller, and the folder of the audit."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kant.model.errors import InputError
from kant.ops.audit import Audit
from kant.ops.desk import Desk
from kant.ops.rules import RoleLimits
from kant.ops.world import World
from kant.service.client import home_of
from kant.service.roles import RANK, Caller, Role
from kant.toml_file import read_toml

if TYPE_CHECKING:
    from kant.kube.connect.config import Config


class KubeCluster(NamedTuple):
    """A Kubernetes cluster: the client configuration, the namespace of Kant, and the namespace for submitted jobs."""

    config: Config
    system: str
    namespace: str


@dataclass(frozen=True, slots=True)
class Opening:
    """The choice of a world: a running Kant (in `home`, at KANT_URL, or on a `cluster`), a `journal`, or the simulated
    cluster of a `scenario`.

    `role` is the highest role of a caller; `folder` is the folder of the audit (None: the default folder).
    """

    home: Path | None = None
    journal: Path | None = None
    at: int | None = None
    scenario: Path | None = None
    role: Role = Role.OPERATOR
    limits: Path | None = None
    folder: Path | None = None
    tokens: Path | None = None
    cluster: KubeCluster | None = None

    def desk(self, via: str) -> Desk:
        """The desk of the user who has started this process. Raises InputError."""
        self._check()
        world = self._world(None)
        who = world.caller() or Caller(getpass.getuser(), self.role, (), f"pid {os.getpid()}")
        return Desk(world, self._at_most(who), self._audit(world), self._limits(), via)

    def desks(self, via: str) -> Callable[[str], Desk]:
        """Return a function that returns the desk of a token's owner; it raises InputError for an invalid token."""
        self._check()
        shared = None if self._runs else self._world(None)
        if shared is not None and self.tokens is None:
            raise InputError("--token-file", "a file of tokens, which --http needs without a running Kant")
        audit, limits = self._audit(shared) if self.cluster is None else None, self._limits()
        known: dict[str, Desk] = {}
        if shared is not None:
            Desk(shared, Caller("server", Role.VIEWER), audit, limits, via)  # replays the audit

        def of(token: str) -> Desk:
            if not token:
                raise InputError("the request", "a token of Kant (Authorization: Bearer …)")
            if shared is not None:
                who = self._key(token)
                return Desk(shared, self._at_most(who), audit, limits, via)
            own = known.get(token)
            world = own.world if own is not None else self._world(token)
            found = world.caller()
            assert found is not None, "a running Kant identifies callers itself"
            if own is None:
                own = known[token] = Desk(world, self._at_most(found), audit or self._audit(world), limits, via)
            own.who = self._at_most(found)
            return own

        return of

    @property
    def _runs(self) -> bool:
        return self.journal is None and self.scenario is None

    def _check(self) -> None:
        if self.journal is not None and self.scenario is not None:
            raise InputError("--journal", "only one of --journal and --scenario")
        if self.cluster is not None and not self._runs:
            raise InputError("--kube", "no --journal and no --scenario with it")
        if self.at is not None and self.journal is None:
            raise InputError("--at", "a --journal with it")

    def _world(self, token: str | None) -> World:
        if self.journal is not None:
            from kant.ops.simulated import SimulatedWorld

            return SimulatedWorld.of_journal(self.journal, self.at)
        if self.scenario is not None:
            from kant.ops.scenario import read_scenario

            return read_scenario(self.scenario).world()
        if self.cluster is not None:
            from kant.ops.kubernetes import KubeWorld, with_token

            config = self.cluster.config if token is None else with_token(self.cluster.config, token)
            return KubeWorld(config, self.cluster.system, self.cluster.namespace)
        from kant.ops.running import RunningWorld

        if token is None:
            return RunningWorld(self.home)
        return RunningWorld(url=self._address(), token=token)

    def _address(self) -> str:
        """The address at which Kant accepts tokens. Raises InputError."""
        if os.environ.get("KANT_URL") and self.home is None:
            return os.environ["KANT_URL"]
        found = str(address_of(self.home))
        if not found:
            raise InputError("--http", "a Kant that listens on an address, for its tokens (`kant up --listen`)")
        return found if "://" in found else f"http://{found}"

    def _audit(self, world: World | None) -> Audit:
        if self.cluster is not None and self.folder is None and world is not None:
            from kant.ops.kube_audit import KubeAudit
            from kant.ops.kubernetes import KubeWorld

            assert isinstance(world, KubeWorld), "the world of a cluster"
            return KubeAudit(world)
        if self.journal is not None and self.folder is None:
            return Audit()  # a journal is only read, so it has no audit
        if self.scenario is not None:
            return Audit(self.folder or self.scenario.with_suffix(".ops"))
        return Audit(self.folder or home_of(self.home) / "ops")

    def _limits(self) -> RoleLimits:
        return read_toml(self.limits, RoleLimits) if self.limits is not None else RoleLimits()

    def _at_most(self, who: Caller) -> Caller:
        least = min(who.role, self.role, key=RANK.__getitem__)
        return Caller(who.user, least, who.queues, who.origin, who.is_unix)

    def _key(self, token: str) -> Caller:
        """Return the owner of a token. The file of tokens is read at each call, so a revoked token is rejected."""
        from kant.service.tokens import key_of, read_keys

        assert self.tokens is not None
        found = key_of(token, read_keys(self.tokens))
        if found is None:
            raise InputError("the token", "a token that the file of tokens has")
        return Caller(found.user, found.role, found.queues, "its token")


def address_of(home: Path | None) -> str:
    """Return the address of the Kant in a home folder; "" if it does not listen on the network."""
    from kant.client.kant import Kant

    return Kant(home).api.whoami().address
