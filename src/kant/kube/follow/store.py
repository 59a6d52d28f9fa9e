"""Stores: the latest objects of one kind by name, with a callback for changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, TypeVar

K = TypeVar("K")
T = TypeVar("T")


own_name: Callable[[Any], str] = attrgetter("metadata.name")
"""Return the name of a cluster-scoped object."""

space_name: Callable[[Any], tuple[str, str]] = attrgetter("metadata.namespace", "metadata.name")
"""Return the namespace and name of an object."""


def version(one: Any) -> object:
    """Return a key that changes whenever the object changes."""
    return one.metadata.resource_version or object()


class Store(dict[K, T]):
    """Calls `on_change` for each change with the key, the object before (None: new) and the object now (None: gone).

    `relevant` returns the parts of an object that matter. Changes of other parts do not call `on_change`.
    """

    def __init__(
        self,
        key: Callable[[T], K],
        on_change: Callable[[K, T | None, T | None], object],
        relevant: Callable[[T], object] = version,
    ) -> None:
        super().__init__()
        self._key = key
        self._on_change = on_change
        self._relevant = relevant

    def change(self, kind: str, one: T) -> bool:
        """Record that an object was added, modified or deleted. Returns False if nothing relevant is new."""
        key = self._key(one)
        before, now = self.get(key), None if kind == "deleted" else one
        if now is None:
            self.pop(key, None)
        else:
            self[key] = now
        if before is not None and now is not None and self._relevant(before) == self._relevant(now):
            return False
        self._on_change(key, before, now)
        return True

    def replace(self, objects: Iterable[T]) -> None:
        """Replace all objects."""
        fresh = {self._key(one): one for one in objects}
        for key in [key for key in self if key not in fresh]:
            self.change("deleted", self[key])
        for one in fresh.values():
            self.change("modified", one)
