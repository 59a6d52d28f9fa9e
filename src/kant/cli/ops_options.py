"""Options of `kant ops` and `kant mcp`: the cluster, and the limits of permitted changes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Group, Parameter

from kant.cli.inputs import Home, parse_at
from kant.cli.kube_options import SYSTEM, Kube, System

if TYPE_CHECKING:
    from kant.ops.opening import KubeCluster, Opening

GROUP = Group("Which cluster")


@Parameter(name="*", group=GROUP)
@dataclass(frozen=True, slots=True)
class Where(Kube):
    """Kant on this machine or at KANT_URL, unless another place is named."""

    system: System = SYSTEM
    home: Home = None
    journal: Annotated[Path | None, Parameter(help="A journal.jsonl, which is only read.")] = None
    at: Annotated[str | None, Parameter(help="A time of the journal, such as 2h. Default: its end.")] = None
    scenario: Annotated[
        Path | None, Parameter(help="A TOML file that describes a simulated cluster (docs/ops.md).")
    ] = None
    folder: Annotated[
        Path | None,
        Parameter(help="The file of the audit. Default: `ops` in the home; with a scenario, NAME.ops next to it."),
    ] = None
    limits: Annotated[
        Path | None, Parameter(help="A TOML file with the limits of each role (docs/ops.md). Default: built-in limits.")
    ] = None
    role: Annotated[
        Literal["viewer", "tenant", "operator"],
        Parameter(help="The role to act in, at most your own: a viewer changes nothing."),
    ] = "operator"

    def opening(self, tokens: Path | None = None) -> Opening:
        """Return what these options describe, as an `Opening`."""
        from kant.ops.opening import Opening
        from kant.service.roles import Role

        given = (self.home, self.journal, parse_at(self.at), self.scenario, Role(self.role), self.limits, self.folder)
        return Opening(*given, tokens, self._cluster() if self else None)

    def _cluster(self) -> KubeCluster:
        from kant.kube.connect.config import load
        from kant.ops.opening import KubeCluster

        return KubeCluster(load(self.kubeconfig, self.context), self.system, self.namespace)
