"""Dividing an amount by weighted max-min fairness: nobody gets more while somebody poorer, by weight, wants more."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction


def divided(total: int, wants: Sequence[int], weights: Sequence[int]) -> list[int]:
    """`total` divided by `weights` (each 1 or more), nobody getting more than it wants. Nothing is left that is wanted.

    Where the fair parts are no integers, the largest remainders are rounded up, ties going to the earlier index.

    Source: Bertsekas and Gallager, Data Networks, section 6.5.2, with weights and one shared link.
    """
    parts = list(wants)
    if sum(wants) <= total:
        return parts
    # Whoever wants the least for its weight is satisfied first; then the rest share what is left.
    poor = sorted(range(len(wants)), key=lambda i: (Fraction(wants[i], weights[i]), i))
    weight = sum(weights)
    satisfied = 0
    while wants[poor[satisfied]] * weight <= total * weights[poor[satisfied]]:
        total -= wants[poor[satisfied]]
        weight -= weights[poor[satisfied]]
        satisfied += 1
    hungry = poor[satisfied:]
    for i in hungry:
        parts[i] = total * weights[i] // weight
    left = total - sum(parts[i] for i in hungry)
    for i in sorted(hungry, key=lambda i: (-(total * weights[i] % weight), i))[:left]:
        parts[i] += 1
    return parts
