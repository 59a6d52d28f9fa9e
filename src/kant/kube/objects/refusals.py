"""Why a waiting pod is no job in the core yet: the pod is invalid, or needs something that does not exist yet."""

from __future__ import annotations

from collections.abc import Callable

from kant.model.errors import SentenceError


class MalformedError(SentenceError):
    """An error in an object, as one sentence."""


class NoMatchingNodeError(MalformedError):
    """No existing node fits, but a fitting node may join one of the node sets `node_sets`.

    `why` returns one sentence on why none fits. It looks at all nodes, so it is called only to show the error.
    """

    def __init__(self, why: Callable[[], str], node_sets: frozenset[str]) -> None:
        super().__init__("")
        self.why, self.node_sets = why, node_sets

    def __str__(self) -> str:
        return self.why()


class NotYetError(MalformedError):
    """A pod is valid, but something that the pod needs does not exist yet."""


class SelectorError(Exception):
    """A device selector that cannot be evaluated, as one sentence. `later`: the evaluation may succeed later."""

    def __init__(self, sentence: str, later: bool = False) -> None:
        super().__init__(sentence)
        self.later = later
