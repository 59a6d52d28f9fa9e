"""The signals that policies and routers use, and whether the requests have them. Reports the use of an oracle, and
signals that nothing uses.
"""

from __future__ import annotations

import numpy as np

from kant.serving.policy import ENDED, Policy
from kant.serving.requests import Requests
from kant.serving.routing import Router

LACKS = {
    "predicted": "the true outputs as an oracle, as the requests have no prediction",
    "priority": "priorities, but all requests have the same",
    "program": "programs, but no request has one",
    "prefix": "prefixes, but no two requests share one",
}
"""The text about a policy or router that uses a signal that the requests do not have."""


def present(requests: Requests) -> set[str]:
    """Return the signals that the requests have: predictions, priorities, programs, shared prefixes."""
    has = {
        "predicted": (requests.predicted != requests.output).any(),
        "priority": len(np.unique(requests.priority)) > 1,
        "program": (requests.program >= 0).any(),
        "prefix": len(requests.hashes) > 0 or ((requests.group >= 0) & (requests.prefix > 0)).any(),
    }
    return {name for name, there in has.items() if there}


def said(requests: Requests, cached: bool, parts: dict[str, Policy | Router]) -> list[str]:
    """Return a sentence on each signal that the policy or router uses, and on each signal that neither uses.

    `parts` are the policy and the router, by name. `cached`: the engines use shared prefixes.
    """
    has, found = present(requests), []
    used = {"prefix"} if cached else set()
    for name, part in parts.items():
        used |= set(part.signals)
        for signal in part.signals:
            if signal == ENDED:
                found.append(f"{name} predicts from the outputs of the requests that have ended")
            elif signal == "predicted" and signal in has:
                off = float(np.abs(requests.predicted / requests.output - 1).mean())
                found.append(f"{name} uses the requests' own predictions, on average {off:.0%} off")
            elif signal not in has:
                found.append(f"{name} uses {LACKS[signal]}")
    names = " nor ".join(parts)
    return found + [f"neither {names} uses the requests' {signal}" for signal in sorted(has - used - {"predicted"})]
