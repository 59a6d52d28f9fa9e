"""`kant.Profile`: an order, a discipline and a placement, built in, from a file, or from a text."""

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
"""The base class of each part of a profile."""


@dataclass(frozen=True)
class Profile:
    """The policies of a scheduler and their settings. `inner` is Kant's internal object.

    Make one by `read` (a built-in profile or a file) or `parse` (the TOML text), and replace policies with `using`. It
    is immutable.
    """

    inner: profiles.Profile

    @classmethod
    def read(cls, spec: str | PathLike[str]) -> Profile:
        """Return a built-in profile by name, such as "kant" or "fifo", or one from a TOML file. Raises InputError."""
        return cls(read_profile(spec, "profile"))

    @classmethod
    def parse(cls, text: str, name: str = "profile") -> Profile:
        """Return the profile described by a TOML text (docs/profiles.md). Raises InputError."""
        return cls(profiles.parse_profile(text, name))

    def using(
        self,
        *,
        order: Order | str | None = None,
        discipline: Discipline | str | None = None,
        placement: NodePolicy | str | None = None,
        name: str | None = None,
    ) -> Profile:
        """Return this profile with other policies, each an object or the name of one with its default fields.

        It is called `name`, or after the new policies. Raises InputError for a policy of the wrong kind, and for
        policies that do not fit together.
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
            raise InputError(
                f"{title}: discipline", f"one of {', '.join(honouring)}, as the order ranks queues by share", got
            )
        return Profile(changed)

    @property
    def name(self) -> str:
        """The name in tables and pictures."""
        return self.inner.name

    @property
    def text(self) -> str:
        """The TOML that it was read from; with policies replaced by `using`, the Python `repr` of all its parts."""
        return self.inner.text or repr(self.inner)

    def __repr__(self) -> str:
        parts = (getattr(self.inner, kind).__struct_config__.tag for kind in KINDS)
        return f"Profile({self.name!r}: {', '.join(parts)})"


def _policy(kind: str, choice: Any) -> Any:
    if isinstance(choice, str):
        return make_policy(kind, {"policy": choice}, kind)
    if not isinstance(choice, BASES[kind]):
        raise InputError(kind, f"the name of a policy, or an instance of kant.{BASES[kind].__name__}", choice)
    return choice
