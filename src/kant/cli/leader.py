"""`kubectl kant` through the leader: the leader gets the question, and its answer is printed unchanged.

The leader answers from its own state with the code in `live.py`, so only the answer is transferred.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from kant import __version__

if TYPE_CHECKING:
    from kant.cli.live import LiveCluster
    from kant.cli.output import Printable, Reply
    from kant.cli.own_pods import OwnPods
    from kant.kube.connect.config import Config
    from kant.kube.user.overview import Overview

ClusterAnswers: TypeAlias = "LiveCluster | LeaderAnswers | OwnPods"
"""A source of answers about a cluster."""


@dataclass(frozen=True, slots=True)
class LeaderAnswers:
    """Answers like `LiveCluster`, with text from the leader or, if it does not respond, from `alone`."""

    config: Config
    system: str
    ticket: str
    alone: Callable[[], LiveCluster]

    def why(self, namespace: str, pod: str) -> Printable:
        """Return why a pod waits, or where it runs."""
        return self._ask("why", namespace, pod, lambda live: live.why(namespace, pod))

    def eta(self, namespace: str, pod: str | None) -> Printable:
        """Return when the waiting jobs are expected to start."""
        return self._ask("eta", namespace, pod or "", lambda live: live.eta(namespace, pod))

    def queues(self, namespace: str = "") -> Printable:
        """Return the quota, use, borrowing, lending and waiting jobs of each queue, for all namespaces."""
        return self._ask("queue", "", "", lambda live: live.queues())

    def top(self, namespace: str = "") -> Printable:
        """Return the capacity of the pools, and the largest running jobs, for all namespaces."""
        return self._ask("top", "", "", lambda live: live.top())

    def status(self, optimality: bool) -> Reply:
        """Return the capacity, use and demand of the cluster, without asking the leader."""
        return self.alone().status(optimality)

    def _ask(self, word: str, namespace: str, name: str, otherwise: Callable[[LiveCluster], Reply]) -> Printable:
        about = {"namespace": namespace or self.config.namespace, "name": name} if name else {}
        return LeaderReply(self, word, about, otherwise)


@dataclass(frozen=True, slots=True)
class LeaderReply:
    """An answer that is requested only when the output format is known."""

    words: LeaderAnswers
    word: str
    about: dict[str, str]
    otherwise: Callable[[LiveCluster], Reply]

    def print(self, json: bool) -> int:
        """Print the answer; return the exit code. Raises InputError."""
        import asyncio
        import sys

        from kant.kube.connect.ticket import PATH
        from kant.kube.user.leader_answer import answer_of_leader

        own = self.words
        how = {"json": ""} if json else _terminal()
        found = asyncio.run(answer_of_leader(own.config, own.system, own.ticket, PATH + self.word, self.about | how))
        if found is None:
            return self.otherwise(own.alone()).print(json)
        sys.stdout.write(found.decode())
        return 0


def _terminal() -> dict[str, str]:
    """Return the line width and whether to use colours, as rich determines them."""
    import os
    import shutil
    import sys

    is_terminal, columns = sys.stdout.isatty(), os.environ.get("COLUMNS", "")
    wide = shutil.get_terminal_size().columns if is_terminal else int(columns) if columns.isdecimal() else 0
    coloured = is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "") not in ("dumb", "unknown")
    return ({"columns": str(wide)} if wide else {}) | ({"colours": ""} if coloured else {})


PLAIN_UP_TO, PLAIN_FUTURES_UP_TO = 2_000, 300
"""The maximum number of nodes for which kernels in plain Python answer one question sooner than compiled ones, which
take longer to load than to run. The second number is for forecasts, which run the kernels more often.
"""


def cluster_answers(
    kubeconfig: Path | None, context: str | None, profile: str = "", system: str = "kant-system", futures: bool = False
) -> ClusterAnswers:
    """Return the source of answers about a cluster: its leader, if the caller may ask it; otherwise the present state,
    read from the API server; or the caller's own pods, if the caller may see no others.

    Without a `profile`, the one on the leader's Lease is used, or else the default profile. `futures`: start forecasts
    will be needed. If no replica leads, a message on standard error says so.
    """
    import asyncio
    import sys

    from kant.cli.own_pods import OwnPods
    from kant.kube.connect.config import load
    from kant.kube.user.overview import overview

    config = load(kubeconfig, context)
    seen = asyncio.run(overview(config, system))
    if seen.nodes is None:
        return OwnPods(config)
    if seen.unled:
        print(f"kant: no leader: {seen.unled}. This is what a replica that starts now would answer.", file=sys.stderr)
    alone = partial(_reckoned, config, seen, profile, system, futures)
    if seen.ticket and seen.version == __version__ and not profile and not seen.unled:
        return LeaderAnswers(config, system, seen.ticket, alone)
    return alone()


def _reckoned(config: Config, seen: Overview, profile: str, system: str, futures: bool) -> LiveCluster:
    """Return the present state of a cluster, read from its API server. `profile` "": the one in the overview `seen`."""
    import asyncio
    import os
    import sys

    if (seen.nodes or 0) <= (PLAIN_FUTURES_UP_TO if futures else PLAIN_UP_TO) and "kant.compiled" not in sys.modules:
        os.environ.setdefault("NUMBA_DISABLE_JIT", "1")
    from kant.cli.inputs import load_profile
    from kant.cli.live import LiveCluster
    from kant.kube.user.rebuild import rebuilt
    from kant.model.units import count_from
    from kant.scheduler.profile import parse_profile

    where = "the profile on the Lease of Kant"
    if seen.version not in ("", __version__):
        where += f" (of version {seen.version}; this is {__version__}, and --profile names another)"
    from_leader = seen.profile and not profile
    own = parse_profile(seen.profile, where) if from_leader else load_profile(profile or "kant")
    found = asyncio.run(rebuilt(config, own, namespace=system))
    count_from(found.zero)
    return LiveCluster(found, config.namespace)
