"""Kubernetes quantities, such as `100m`, `1.5`, `2Gi` or `1e3`, converted exactly to whole numbers of Kant's units.

Source: the grammar of k8s.io/apimachinery, pkg/api/resource/quantity.go.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from math import ceil, floor

from kant.model.errors import InputError
from kant.model.tenant import MAX_AMOUNT

Quantity = str | int | float
"""A quantity in JSON. The number 2 means the same as the text "2"."""

_FORM = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:([KMGTPE]i|[numkMGTPE])|[eE]([+-]?[0-9]{1,3}))?")
_SCALE = {
    **{f"{letter}i": Fraction(1 << 10 * (power + 1)) for power, letter in enumerate("KMGTPE")},
    **{letter: Fraction(1000 ** (power + 1)) for power, letter in enumerate("kMGTPE")},
    **{letter: Fraction(1, 1000 ** (power + 1)) for power, letter in enumerate("mun")},
}
_LONGEST = 64
_MIB = 1 << 20


def exact(value: Quantity | Fraction, where: str) -> Fraction:
    """Return the exact value. Raises InputError for a value that is not a quantity or is negative."""
    number = value if isinstance(value, Fraction) else _parsed(value if isinstance(value, str) else repr(value))
    if number is None:
        raise InputError(where, "a quantity such as 2, 500m, 1.5 or 64Gi", value)
    if number < 0:
        raise InputError(where, "a quantity that is not negative", value)
    return number


@lru_cache(maxsize=4096)
def _parsed(text: str) -> Fraction | None:
    form = _FORM.fullmatch(text) if len(text) <= _LONGEST else None
    if form is None:
        return None
    number = Fraction(form[1])
    if form[2]:
        return number * _SCALE[form[2]]
    return number * Fraction(10) ** int(form[3]) if form[3] else number


def milli(value: Quantity | Fraction, where: str, up: bool = True) -> int:
    """Return thousandths, such as millicores. Requests are rounded up, capacities (`up` False) down."""
    return _whole(exact(value, where) * 1000, value, where, up)


def mib(value: Quantity | Fraction, where: str, up: bool = True) -> int:
    """Return a quantity of bytes in MiB, rounded as in `milli`."""
    return _whole(exact(value, where) / _MIB, value, where, up)


def count(value: Quantity | Fraction, where: str) -> int:
    """Return a whole number, such as a number of GPUs. Raises InputError for any other quantity."""
    number = exact(value, where)
    if number.denominator != 1:
        raise InputError(where, "a whole number", _shown(value))
    return _whole(number, value, where, True)


def text_of(resource: str, amount: int) -> str:
    """Return a queue's amount of a resource as a quantity. `amount` is in MiB for memory, else in thousandths."""
    return f"{amount}Mi" if resource == "memory" else f"{amount}m" if amount % 1000 else f"{amount // 1000}"


def _whole(number: Fraction, value: Quantity | Fraction, where: str, up: bool) -> int:
    amount = ceil(number) if up else floor(number)
    if amount >= MAX_AMOUNT:
        raise InputError(where, "an amount that one node can have", _shown(value))
    return amount


def _shown(value: Quantity | Fraction) -> object:
    return str(value) if isinstance(value, Fraction) else value
