"""Which of the built-in profiles a matrix is tried with."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from tests.examples import TIMES

from kant.scheduler.profile import builtin_texts


def few(names: Iterable[str] = (), *sections: str) -> list[str]:
    """Of these profiles, or all, the fewest with every policy that they name in `sections`, or anywhere; and `kant`.

    KANT_EXAMPLES=2 gives all of them. The digests of every profile are in `core/test_golden.py`.
    """
    texts = builtin_texts()
    wanted = list(names) or list(texts)
    if TIMES >= 2:
        return wanted
    has = {name: {each for each in _named_in(name) if not sections or each[0][0] in sections} for name in wanted}
    missing, found = set().union(*has.values()), list[str]()
    while missing:
        best = max(wanted, key=lambda name: (name == "kant" and not found, len(has[name] & missing)))
        found.append(best)
        missing -= has[best]
    return [name for name in wanted if name in found]


@cache
def _named_in(profile: str) -> frozenset[tuple[tuple[str, ...], str]]:
    """Read once: modules ask while they are collected, in every worker."""
    return frozenset(_words(tomllib.loads(builtin_texts()[profile])))


def _words(value: Any, *path: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Where a profile names something, and what: its policies, and which tables it has."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _words(part, *path, key)
    elif isinstance(value, list):
        for part in value:
            yield from _words(part, *path)
    elif path not in (("about",), ("name",)):
        yield path, value if isinstance(value, str) else ""
