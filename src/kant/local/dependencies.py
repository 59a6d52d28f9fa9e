"""Detects circular waits between jobs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cached_property

from kant.local.record import JobRecord

Name = tuple[str, str]
Node = str | tuple[Name, int]
"""A job, or all jobs of one user and name up to a position, for which a singleton waits."""


def circle(records: Mapping[str, JobRecord], changed: Mapping[str, JobRecord]) -> tuple[str, str]:
    """Return a job that would wait for itself with the `changed` jobs, and the next job of the cycle.

    Both are "" if there is none. `records` are the jobs that have not ended, in order of submission. A singleton waits
    for every earlier job of its user and name, including those of its own array. Takes time linear in the dependencies
    of the changed jobs.
    """
    graph, done, on_path = _Graph(records, changed), set[Node](), set[Node]()
    for start in changed:
        path: list[tuple[Node, Iterator[Node]]] = [(start, graph.ahead(start))] if start not in done else []
        on_path.update(node for node, _ in path)
        while path:
            node, further = path[-1]
            other = next(further, None)
            if other is None:
                path.pop()
                on_path.remove(node)
                done.add(node)
            elif other in on_path:
                nodes = [each for each, _ in path]
                jobs = [each for each in nodes[nodes.index(other) :] if isinstance(each, str)]
                at = next(place for place, job in enumerate(jobs) if job in changed)
                return jobs[at], jobs[(at + 1) % len(jobs)]
            elif other not in done:
                path.append((other, graph.ahead(other)))
                on_path.add(other)
    return "", ""


class _Graph:
    """The graph of dependencies: the nodes that each node waits for."""

    def __init__(self, records: Mapping[str, JobRecord], changed: Mapping[str, JobRecord]) -> None:
        self.records = records
        self.changed = changed

    @cached_property
    def alike(self) -> dict[Name, dict[str, int]]:
        """The jobs of each user and name, with their positions."""
        found = defaultdict[Name, dict[str, int]](dict)
        for job in self.records:
            own = found[self._name(job)]
            own[job] = len(own)
        return found

    @cached_property
    def _listed(self) -> dict[Name, list[str]]:
        return {name: list(jobs) for name, jobs in self.alike.items()}

    def _now(self, job: str) -> JobRecord:
        return self.changed.get(job) or self.records[job]

    def _name(self, job: str) -> Name:
        record = self._now(job)
        return record.user, record.submission.name

    def ahead(self, node: Node) -> Iterator[Node]:
        if not isinstance(node, str):
            name, place = node
            yield self._listed[name][place]
            if place:
                yield name, place - 1
            return
        record = self._now(node)
        yield from (job for job in record.ahead if job in self.records)
        if record.submission.singleton and (place := self.alike[self._name(node)][node]):
            yield self._name(node), place - 1
