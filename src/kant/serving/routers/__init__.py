"""The routers, each in its own file, and their names. A router sees the current state of the engines.

If several engines are equally good, one of them is drawn at random. `Incoming` describes a request; of its output,
routers may only use the prediction. The same objects route in the simulator and in front of real engines.
"""

from __future__ import annotations

from collections.abc import Callable

from kant.model.errors import InputError
from kant.serving.routers.block import Block
from kant.serving.routers.dodoor import Dodoor
from kant.serving.routers.impact import Impact
from kant.serving.routers.intelligent import Intelligent
from kant.serving.routers.least_tokens import LeastTokens
from kant.serving.routers.llumnix import Llumnix
from kant.serving.routers.lmetric import Lmetric
from kant.serving.routers.prefix import PrefixAware
from kant.serving.routers.program_affinity import ProgramAffinity
from kant.serving.routers.random_engine import RandomEngine
from kant.serving.routers.round_robin import RoundRobin
from kant.serving.routers.shortest_queue import ShortestQueue
from kant.serving.routers.two_choices import TwoChoices
from kant.serving.routing import Router

ROUTERS: dict[str, Callable[[], Router]] = {
    "round-robin": RoundRobin,
    "random": RandomEngine,
    "two-choices": TwoChoices,
    "dodoor": Dodoor,
    "shortest-queue": ShortestQueue,
    "least-tokens": LeastTokens,
    "llumnix": Llumnix,
    "lmetric": Lmetric,
    "program-affinity": ProgramAffinity,
    "block": Block,
    "impact": Impact,
    "prefix": PrefixAware,
    "intelligent": Intelligent,
}


def router_named(name: str, option: str = "--router") -> Router:
    """Return a new router of that name; raises InputError listing those that exist, about `option`."""
    if name not in ROUTERS:
        raise InputError(option, f"one of {', '.join(ROUTERS)}", name)
    return ROUTERS[name]()
