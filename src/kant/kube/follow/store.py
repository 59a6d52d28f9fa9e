"""Stores: the objects of one kind by name, as the API server said them last, and who is told of what is new."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, TypeVar

K = TypeVar("K")
T = TypeVar("T")


own_name: Callable[[Any], str] = attrgetter("metadata.name")
"""The name of an object that is in no namespace."""

space_name: Callable[[Any], tuple[str, str]] = attrgetter("metadata.namespace", "metadata.name")
"""The namespace and name of an object."""


def version(one: Any) -> object:
    """Equal for an object that is as it was."""
    return one.metadata.resource_version or object()


class Store(dict[K, T]):
    """`told` hears of each change: the key, the object before (None: it is new) and now (None: it is gone).

    `relevant` is all of an object that anything depends on. A change of what is not relevant is kept, and told nobody.
    """

    def __init__(
        self,
        key: Callable[[T], K],
        told: Callable[[K, T | None, T | None], object],
        relevant: Callable[[T], object] = version,
    ) -> None:
        super().__init__()
        self._key = key
        self._told = told
        self._relevant = relevant

    def change(self, kind: str, one: T) -> bool:
        """An object was added, modified or deleted. False where nothing is new."""
        key = self._key(one)
        before, now = self.get(key), None if kind == "deleted" else one
        if now is None:
            self.pop(key, None)
        else:
            self[key] = now
        if before is not None and now is not None and self._relevant(before) == self._relevant(now):
            return False
        self._told(key, before, now)
        return True

    def replace(self, objects: Iterable[T]) -> None:
        """All objects there are."""
        fresh = {self._key(one): one for one in objects}
        for key in [key for key in self if key not in fresh]:
            self.change("deleted", self[key])
        for one in fresh.values():
            self.change("modified", one)
