"""Why a pod that waits is no job yet: something is wrong with it, or is not there yet."""

from __future__ import annotations

from kant.model.errors import InputError


class MalformedError(InputError):
    """What is wrong with an object, in a sentence of its own."""

    def __init__(self, sentence: str) -> None:
        super().__init__("", sentence)
        self.args = (sentence,)


class NoMatchingNodeError(MalformedError):
    """No node will do, as nodes are now: others may come, into the sets `node_sets`."""

    def __init__(self, sentence: str, node_sets: frozenset[str]) -> None:
        super().__init__(sentence)
        self.node_sets = node_sets


class NotYetError(MalformedError):
    """Nothing is wrong: what it needs is not there yet."""
