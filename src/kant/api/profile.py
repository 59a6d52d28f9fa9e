"""`kant.Profile`: an order, a discipline and a placement, built in, from a file, or written where it is used."""

from __future__ import annotations

from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

from kant.live.profile_file import read_profile
from kant.model.errors import InputError
from kant.placement.policy import NodePolicy
from kant.queueing.discipline import Discipline
from kant.queueing.order import Order
from kant.scheduler import profile as profiles
from kant.scheduler.registry import KINDS, make_policy, policies
from kant.scheduler.strategies import check_zone

BASES: dict[str, type] = {"order": Order, "discipline": Discipline, "placement": NodePolicy}
"""What each part of a profile is."""


@dataclass(frozen=True)
class Profile:
    """The policies of a scheduler and their settings. `inner` is what Kant's rooms work on.

    Make one by `read` (a built-in profile or a file) or `parse` (the TOML text), and put other policies into it by
    `using`. It does not change.
    """

    inner: profiles.Profile

    @classmethod
    def read(cls, spec: str | PathLike[str]) -> Profile:
        """A built-in profile by name, such as "kant" or "fifo", or one from a TOML file. Raises InputError."""
        return cls(read_profile(spec, "profile"))

    @classmethod
    def parse(cls, text: str, name: str = "profile") -> Profile:
        """The profile that a TOML text describes (docs/profiles.md). Raises InputError."""
        return cls(profiles.parse_profile(text, name))

    def using(
        self,
        *,
        order: Order | str | None = None,
        discipline: Discipline | str | None = None,
        placement: NodePolicy | str | None = None,
        name: str | None = None,
    ) -> Profile:
        """This profile with other policies, each an object or the name of one with its default fields.

        It is called `name`, or after the policies that are new. Raises InputError for what is no policy of its kind,
        and for policies that do not go together.
        """
        given = {"order": order, "discipline": discipline, "placement": placement}
        made = {kind: _policy(kind, choice) for kind, choice in given.items() if choice is not None}
        tags = ", ".join(str(policy.__struct_config__.tag) for policy in made.values())
        title = name or ", ".join(part for part in (self.name, tags) if part)
        changed = replace(self.inner, name=title, text="", **made)
        check_zone((changed.placement, *changed.placements), title)
        if changed.order.shares and not changed.discipline.quotas:
            honouring = [tag for tag, found in policies("discipline").items() if found.type.quotas]  # type: ignore[attr-defined]
            got = str(changed.discipline.__struct_config__.tag)
            raise InputError(f"{title}: discipline", f"one of {', '.join(honouring)} with an order of queues", got)
        return Profile(changed)

    @property
    def name(self) -> str:
        """What tables and pictures call it."""
        return self.inner.name

    @property
    def text(self) -> str:
        """The TOML that it was read from; with policies put in by `using`, all its parts as Python writes them."""
        return self.inner.text or repr(self.inner)

    def __repr__(self) -> str:
        parts = (getattr(self.inner, kind).__struct_config__.tag for kind in KINDS)
        return f"Profile({self.name!r}: {', '.join(parts)})"


def _policy(kind: str, choice: Any) -> Any:
    if isinstance(choice, str):
        return make_policy(kind, {"policy": choice}, kind)
    if not isinstance(choice, BASES[kind]):
        raise InputError(kind, f"the name of one, or an object of a class of kant.{BASES[kind].__name__}", choice)
    return choice
