"""Why a waiting pod is not a job yet: it is invalid, or lacks something that does not exist yet."""

from __future__ import annotations

from collections.abc import Callable

from kant.model.errors import SentenceError


class MalformedError(SentenceError):
    """An error in an object, in a sentence of its own."""


class NoMatchingNodeError(MalformedError):
    """No present node fits, but nodes may join the node sets `node_sets`.

    `why` says in one sentence why none fits; since it looks at all nodes, call it only if the error is shown.
    """

    def __init__(self, why: Callable[[], str], node_sets: frozenset[str]) -> None:
        super().__init__("")
        self.why, self.node_sets = why, node_sets

    def __str__(self) -> str:
        return self.why()


class NotYetError(MalformedError):
    """The object is valid, but something that it needs does not exist yet."""


class SelectorError(Exception):
    """A device selector that cannot be evaluated, in one sentence. `later`: it may be tried again after some time."""

    def __init__(self, sentence: str, later: bool = False) -> None:
        super().__init__(sentence)
        self.later = later
