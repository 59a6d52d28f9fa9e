"""`kubectl kant` through the leader: the question is sent to the leader, and its answer is printed unchanged.

The leader answers with the code of `live.py`, from its own state, so only the answer is transferred.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kant.model.errors import InputError

if TYPE_CHECKING:
    from kant.cli.live import LiveCluster
    from kant.cli.output import Printable, Reply
    from kant.insight.expected_start import StartForecast
    from kant.kube.connect.config import Config
    from kant.kube.lead.driver import KubeDriver
    from kant.kube.serve.asked import Question
    from kant.live.core import Core
    from kant.live.start_forecasts import StartForecasts

SOON = 1.5
"""Seconds for which a question waits for a forecast before the caller must ask again."""


class LeaderWords:
    """Answers like `LiveCluster`, with text from the leader; if the leader does not respond, with that of `alone`."""

    def __init__(self, config: Config, system: str, ticket: str, alone: Callable[[], LiveCluster]) -> None:
        self.config = config
        self.system = system
        self.ticket = ticket
        self.alone = alone

    def why(self, namespace: str, pod: str) -> Printable:
        """Return why a pod waits, or where it runs."""
        return self._ask("why", namespace, pod, lambda live: live.why(namespace, pod))

    def eta(self, namespace: str, pod: str | None) -> Printable:
        """Return when the waiting jobs are expected to start."""
        return self._ask("eta", namespace, pod or "", lambda live: live.eta(namespace, pod))

    def queues(self, namespace: str = "") -> Printable:
        """Return each queue's quota, use, borrowing, lending and waiting jobs, of all namespaces."""
        return self._ask("queue", "", "", lambda live: live.queues())

    def top(self, namespace: str = "") -> Printable:
        """Return the capacity of the pools, and the largest running jobs, of all namespaces."""
        return self._ask("top", "", "", lambda live: live.top())

    def status(self, optimality: bool) -> Reply:
        """Return the capacity, use and demand of the cluster, without asking the leader."""
        return self.alone().status(optimality)

    def _ask(self, word: str, namespace: str, name: str, otherwise: Callable[[LiveCluster], Reply]) -> Printable:
        about = {"namespace": namespace or self.config.namespace, "name": name} if name else {}
        return LeaderReply(self, word, about, otherwise)


class LeaderReply:
    """An answer that is requested once the output format is known."""

    def __init__(
        self, words: LeaderWords, word: str, about: dict[str, str], otherwise: Callable[[LiveCluster], Reply]
    ) -> None:
        self.words = words
        self.word = word
        self.about = about
        self.otherwise = otherwise

    def print(self, json: bool) -> int:
        """Print it; return the exit code. Raises InputError."""
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
    """Return the line width and whether to use colours, as rich detects them."""
    import os
    import shutil
    import sys

    is_terminal, columns = sys.stdout.isatty(), os.environ.get("COLUMNS", "")
    wide = shutil.get_terminal_size().columns if is_terminal else int(columns) if columns.isdecimal() else 0
    coloured = is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "") not in ("dumb", "unknown")
    return ({"columns": str(wide)} if wide else {}) | ({"colours": ""} if coloured else {})


async def answer(driver: KubeDriver, forecasts: StartForecasts, question: Question) -> bytes:
    """Answer on the leader's side, as text to print. Raises NotLeadingError, NotYetError, and InputError."""
    from kant.cli.live import LiveCluster
    from kant.insight.expected_start import StartForecast
    from kant.kube.serve.asked import NotYetError
    from kant.kube.serve.led_run import NotLeadingError
    from kant.kube.user.rebuilt_state import rebuilt_state
    from kant.model.units import count_from

    only = (question.namespace, question.name)

    def live() -> LiveCluster:
        if driver.core is None or not driver.core.is_settled:
            raise NotLeadingError
        found = rebuilt_state(driver, only)
        count_from(found.zero)
        return LiveCluster(found, question.namespace)

    found, made = live(), None
    if question.word in ("why", "eta"):
        assert driver.core is not None
        wanted = found.waiting(question.namespace, question.name)
        if wanted or not question.name:
            made = await _forecast(driver.core, forecasts, wanted)
            found = live()
            now = found.waiting(question.namespace, question.name)
            if made is None and question.word == "why" and question.brief:
                made = StartForecast(-1, 0, 0, {})
            elif made is None or any(job not in made.jobs for job in now):
                raise NotYetError("the forecast", "one that is made: ask again")
    return LiveCluster(found.found, question.namespace, made).said(question)


async def _forecast(core: Core, forecasts: StartForecasts, jobs: tuple[str, ...]) -> StartForecast | None:
    """Return the latest forecast; None while it is being made. Raises NoForecastError if none can be made."""
    from kant.kube.serve.asked import NoForecastError

    try:
        return await forecasts.latest(core, jobs, SOON)
    except InputError as error:
        if forecasts.trouble:
            raise NoForecastError("the forecaster", str(error)) from None
        return None
