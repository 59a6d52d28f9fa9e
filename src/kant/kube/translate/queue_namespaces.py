"""Queues restricted to the pods of some namespaces, listed by name or selected by labels.

The restriction of a queue also applies to the queues below it: each queue up to the root must allow the namespace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from kant.kube.objects.views import LabelSelector, Unstructured, View
from kant.kube.translate.selectors import selects
from kant.model.errors import InputError
from kant.model.tenant import QueueConfig

Labels = Mapping[str, Mapping[str, str] | None]
"""The labels of each namespace, by its name."""


class _Bound(View, frozen=True):
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelector | None = None


class QueueNamespaces:
    """`allowed` has the allowed namespaces of each restricted queue. `changed` has the namespaces whose pods may use
    other queues than at the last `take_changed`; None: all namespaces."""

    def __init__(self) -> None:
        self.allowed: dict[str, frozenset[str]] = {}
        self.changed: set[str] | None = set()
        self.selecting = False
        self._parents: dict[str, str] = {}

    def follow(
        self, queues: Iterable[Unstructured], queue_config: QueueConfig, labels: Labels | None
    ) -> dict[str, str]:
        """Record the restrictions of queues. `labels` None: Kant may not list namespaces. Returns errors by queue."""
        before, self.allowed = self.allowed, {}
        stood = self._parents
        self._parents = {queue.name: queue.parent for queue in queue_config.queues}
        self.selecting, wrong = False, dict[str, str]()
        for found in queues:
            name = found.metadata.name
            try:
                said = msgspec.json.decode(found.spec, type=_Bound)
            except (msgspec.MsgspecError, RecursionError):
                continue  # a malformed queue starts nothing
            selector = said.namespace_selector
            if not said.namespaces and selector is None:
                continue
            chosen = {*said.namespaces}
            if selector is not None and labels is not None:
                self.selecting = True
                chosen.update(space for space, own in labels.items() if selects(selector, own or {}))
            elif selector is not None:
                expected = "permission for Kant to list namespaces"
                wrong[name] = str(InputError(f"Queue {name}, spec.namespaceSelector", expected))
            self.allowed[name] = frozenset(chosen)
        if (before or self.allowed) and stood != self._parents:
            self.changed = None
        self._note(before)
        return wrong

    def _note(self, before: dict[str, frozenset[str]]) -> None:
        for name in {*before, *self.allowed} if before != self.allowed else ():
            was, now = before.get(name), self.allowed.get(name)
            if was is None or now is None:
                self.changed = None
            elif self.changed is not None:
                self.changed |= was ^ now

    def take_changed(self) -> set[str] | None:
        """Return `changed` and reset it."""
        found, self.changed = self.changed, set()
        return found

    def refuses(self, queue: str, namespace: str) -> str:
        """Return one sentence on why pods of a namespace may not use a queue; "" if they may."""
        above = queue
        while above:
            if namespace not in self.allowed.get(above, (namespace,)):
                whose = f"queue {queue}" + (f" is below queue {above}, which" if above != queue else "")
                return f"{whose} does not accept pods of namespace {namespace}"
            above = self._parents.get(above, "")
        return ""
