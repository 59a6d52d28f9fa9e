"""Divides an amount by weighted max-min fairness: parts grow in proportion to weights until each want is met."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction


def divided(total: int, wants: Sequence[int], weights: Sequence[int]) -> list[int]:
    """Divide `total` in proportion to `weights` (each 1 or more), up to each of `wants`; only an excess is left over.

    If the fair parts are not integers, the largest remainders are rounded up; ties go to the earlier index.

    Source: Bertsekas and Gallager, Data Networks, section 6.5.2, with weights and one shared link.
    """
    parts = list(wants)
    if sum(wants) <= total:
        return parts
    # The smallest wants by weight are satisfied first; then the others share the rest.
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
