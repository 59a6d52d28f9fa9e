"""The process that answers from a leader's journal: effects of orders, usage, explanations of placements.

The leader of a Kubernetes cluster starts it (`service/whatif.py`) on behalf of `kant ops --kube`.
"""

from __future__ import annotations

import sys
from typing import Any

from kant.ops.foresight import foresee
from kant.ops.orders import parse_orders
from kant.ops.past_question import PastQuestion
from kant.ops.simulated import explained_latest, usage_of
from kant.service.whatif_process import main
from kant.sim.past import Past


def answer_of(past: Past, question: PastQuestion) -> Any:
    """Return the answer to a question: OrderFutures, rows of usage, or an explanation. Raises InputError."""
    if question.usage:
        return usage_of(past.events, question.usage, past.now)
    if question.explain:
        return explained_latest(past, question.explain)
    return foresee(past, parse_orders(question.orders), {})


if __name__ == "__main__":
    sys.exit(main(PastQuestion, answer_of))
