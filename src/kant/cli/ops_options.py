"""Which cluster `kant ops` and `kant mcp` are about, and how far they reach."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Group, Parameter

from kant.cli.inputs import Home, parse_at

if TYPE_CHECKING:
    from kant.ops.opening import Opening

GROUP = Group("Which cluster")


@Parameter(name="*", group=GROUP)
@dataclass(frozen=True, slots=True)
class Where:
    """The Kant of this machine, or the one at KANT_URL, unless another is named."""

    home: Home = None
    journal: Annotated[Path | None, Parameter(help="A journal.jsonl, which is only read.")] = None
    at: Annotated[str | None, Parameter(help="A time of the journal, such as 2h. Default: its end.")] = None
    scenario: Annotated[
        Path | None, Parameter(help="A TOML file of which a simulated cluster is made (docs/ops.md).")
    ] = None
    folder: Annotated[
        Path | None,
        Parameter(help="Where the audit is. Default: `ops` in the home; beside a scenario NAME.ops."),
    ] = None
    limits: Annotated[
        Path | None, Parameter(help="A TOML file of how far each role reaches (docs/ops.md). Default: built-in limits.")
    ] = None
    role: Annotated[
        Literal["viewer", "tenant", "operator"], Parameter(help="Be no more than this: a viewer changes nothing.")
    ] = "operator"

    def opening(self, tokens: Path | None = None) -> Opening:
        """It, as operations know it."""
        from kant.ops.opening import Opening
        from kant.service.roles import Role

        return Opening(
            self.home, self.journal, parse_at(self.at), self.scenario, Role(self.role), self.limits, self.folder, tokens
        )
