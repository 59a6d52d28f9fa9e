"""The entries in the demand table for rules among pods and exact amounts: one for each counter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kant.cluster.asks import is_wide
from kant.cluster.columns import D_COUNTED, D_ENTRIES, D_WIDE, DEMAND_WIDTH, ENTRY_WIDTH
from kant.cluster.counters import Counter, Counters
from kant.model.preference import Preferences
from kant.model.rules import PodRules

if TYPE_CHECKING:
    from kant.cluster.shapes import Shapes


class DemandRules:
    """Keeps the entries of all demands that have rules. Demands with the same rules have the same entries."""

    def __init__(self) -> None:
        self.counters = Counters()
        self.width = 0  # columns for entries in each row of the demand table
        self.written = 0  # the `width` with which the present table was made
        self._rows: dict[PodRules, list[int]] = {}
        self._of_class: dict[str, dict[PodRules, None]] = {}

    def add(self, shapes: Shapes, row: int, rules: PodRules) -> None:
        """Add the rules of a demand. If they need new counters, demands in those classes get entries for them too."""
        known = rules in self._rows
        self._rows.setdefault(rules, []).append(row)
        for name in () if known else rules.classes:
            self._of_class.setdefault(name, {})[rules] = None
        self._take_in(shapes, [rules], *self.counters.allot(rules))

    def watch(self, shapes: Shapes, preferences: Preferences) -> None:
        """Allot counters for the pods that a job prefers to be near or to avoid."""
        pairs = [(one.pod_class, one.topology) for one in preferences.pods]
        new = self.counters.watch([*pairs, *((one.pod_class, one.topology) for one in preferences.spread)])
        if new[1]:
            self._take_in(shapes, [], [], *new)

    def _take_in(
        self,
        shapes: Shapes,
        own: list[PodRules],
        amounts: list[str],
        topologies: list[str],
        counters: list[Counter],
    ) -> None:
        counting = [one for name, _, _ in counters for one in self._of_class.get(name, ())]
        for rules in dict.fromkeys((*own, *counting)):
            self._write(shapes, rules)
        if self.counters.on_new is not None and (amounts or counters):
            self.counters.on_new(amounts, topologies, counters)

    def _write(self, shapes: Shapes, rules: PodRules) -> None:
        entries = self.counters.entries(rules)
        if ENTRY_WIDTH * len(entries) > self.width:
            self.width = ENTRY_WIDTH * len(entries)
            shapes.widen()
        rows = self._rows[rules]
        for row in rows:
            shapes.demands[row, [D_COUNTED, D_ENTRIES, D_WIDE]] = rows[0] + 1, len(entries), is_wide(rules)
            for number, entry in enumerate(entries):
                at = DEMAND_WIDTH + ENTRY_WIDTH * number
                shapes.demands[row, at : at + ENTRY_WIDTH] = entry
