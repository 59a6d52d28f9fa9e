"""One replica of Kant in a cluster: it waits for the Lease, leads while it holds the Lease, and ends when stopped."""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kant import __version__
from kant.cluster.state import ClusterState
from kant.kube.connect.client import ApiClient, ApiError, require_version
from kant.kube.connect.config import Config, load
from kant.kube.connect.errors import advice
from kant.kube.follow.informers import BehindError
from kant.kube.lead.answers import LeadershipLostError
from kant.kube.lead.calibration_store import ANNOTATION, USED
from kant.kube.lead.driver import KubeDriver
from kant.kube.lead.lease import Lease, own_identity
from kant.kube.lead.lease_thread import LeaseThread
from kant.kube.lead.name_claim import NameClaim
from kant.kube.lead.settings import DriverSettings
from kant.kube.lead.standby import Ready, Standby
from kant.kube.notify.recorder import EventRecorder
from kant.kube.objects.names import PROFILE, QUEUES_KNOWN, SCHEDULER, TICKET, VERSION
from kant.kube.serve.led_run import LedRun, NotLeadingError
from kant.kube.serve.metrics import KubeTelemetry
from kant.kube.serve.server import ProbeChecks, ProbeServer, later, unfresh
from kant.live.core import Core
from kant.live.journals import Journals
from kant.live.logs import log_event, set_up
from kant.live.solver import Solver, no_solver
from kant.live.start_forecasts import StartForecasts
from kant.live.warm import warm
from kant.model.errors import InputError
from kant.scheduler.profile import parse_profile

if TYPE_CHECKING:
    from aiohttp import web

    from kant.kube.serve.asked import Question
    from kant.kube.serve.questions import LeaderQuestions

OLDEST = (1, 29)
"""The oldest supported API server. The policies that reject bindings of former leaders are stable since 1.30."""

REREAD = 5.0  # seconds between two reads of the profile file

log = logging.getLogger("kant.kube")

LeaderAnswer = Callable[[KubeDriver, StartForecasts, "Question"], Awaitable[bytes]]
"""Answers a question from the state of the leading driver, and from the forecasts made from that state."""

Page = Callable[["LeaderQuestions", Config, str], "list[web.RouteDef]"]
"""Returns the routes of the web page, for an API server and the secret with which questions are signed."""


@dataclass(frozen=True, slots=True)
class ReplicaOptions(DriverSettings):
    """Options of the command line. Times are seconds."""

    kubeconfig: Path | None = None
    context: str | None = None
    journal: Path | None = None
    journal_bytes: int = 3 << 30
    """Limit of all journals together. It is below the size of the manifests' volume: a full volume ends the pod."""
    leader_election: bool = True
    lease: tuple[float, float, float] = (15.0, 10.0, 2.0)
    """Duration of the Lease, renew deadline, retry interval."""
    listen: str = ""
    """The address that serves probes and metrics, such as 0.0.0.0:8080; "": none."""
    log_format: str = "json"
    log_level: str = "info"
    profile_file: Path | None = None
    """The file of the profile, which is read again when it changes; None: the profile does not change."""
    page: Page | None = None
    """Returns the routes of the web page; None: no page is served."""
    solver: Solver = no_solver
    answer: LeaderAnswer | None = None
    """Answers the questions of `kubectl kant`. Used only with `listen`."""


def serve(options: ReplicaOptions) -> int:
    """Run until SIGTERM or SIGINT; return the exit code. Raises InputError for errors that a person has to fix."""
    set_up(options.log_format, options.log_level)
    config = load(options.kubeconfig, options.context)
    warm(options.profile)
    return asyncio.run(Replica(options, config).run())


@dataclass(slots=True)
class Term:
    """A term as leader: its `token`, and `holds`, whether it lasts."""

    token: str = ""
    holds: Callable[[], bool] = lambda: False


class Replica:
    """One replica: stands for election, leads while elected, and answers probes and questions."""

    def __init__(self, options: ReplicaOptions, config: Config) -> None:
        self.options = options
        self.config = config
        self.stopped = asyncio.Event()
        self.driver: KubeDriver | None = None
        self.profile = options.profile
        self.telemetry = KubeTelemetry()
        self.telemetry.stand = self._stands
        self.led = LedRun(StartForecasts(options.forecaster), options.solver)
        self.telemetry.optimality = self.led.optimality.latest
        self._said: dict[str, None] = {}
        self._greeted = False
        self._ticket = secrets.token_hex(16) if options.listen and options.answer is not None else ""
        self._stood: dict[str, str] = {}  # annotations of the Lease when last seen
        self._name_taken = ""  # why an elected replica waits: another Kant has the name

    async def run(self) -> int:
        """Run until SIGTERM or SIGINT; return the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stopped.set)
        async with AsyncExitStack() as stack:
            if self.options.listen:
                more = [later(self._routes)] if self.options.page is not None or self._ticket else []
                await stack.enter_async_context(
                    ProbeServer(self.options.listen, self.telemetry, ProbeChecks(self._unready, self._dump), more)
                )
            client = await stack.enter_async_context(ApiClient(self.config, on_trouble=self.trouble))
            reading = asyncio.create_task(self._reread())
            forecasting = asyncio.create_task(self.led.forecasts.keep_up(self.led.settled_core))
            looking = asyncio.create_task(self.led.optimality.keep_up(self._settled_core))
            await self._until_stopped(self._greet(client))
            self._greeted = True
            while not self.stopped.is_set():
                await self._until_stopped(self._stand(client))
            reading.cancel()
            forecasting.cancel()
            looking.cancel()
        return 0

    # --- questions -------------------------------------------------------------------------

    def _stands(self) -> tuple[ClusterState, int] | None:
        driver = self.driver
        return None if driver is None or driver.core is None else (driver.core.state, driver.core.now)

    def _settled_core(self) -> Core | None:
        """Return the core of the driver; None without one, or while its state is incomplete."""
        core = self.driver.core if self.driver is not None else None
        return core if core is not None and core.is_settled else None

    def _routes(self) -> list[web.RouteDef]:
        """Return the routes of the web page and of questions. Their modules are imported with the first request."""
        page, found = self.options.page, list["web.RouteDef"]()
        if page is not None:
            from kant.kube.serve.questions import LeaderQuestions

            questions = LeaderQuestions(
                self.led,
                lambda job: self.driver.reason(job) if self.driver is not None else "",
                self._journal,
                lambda: self.driver.workloads.outside() if self.driver is not None else {},
            )
            found += page(questions, self.config, self._ticket)
        if self._ticket:
            from kant.kube.serve import asked

            found += asked.routes(self._ticket, self._answer)
        return found

    async def _answer(self, question: Question) -> bytes:
        """Return the leader's answer, encoded. Raises NotLeadingError, NotYetError, and InputError."""
        if self.driver is None or self._settled_core() is None or self.options.answer is None:
            raise NotLeadingError
        return await self.options.answer(self.driver, self.led.forecasts, question)

    def _journal(self) -> str:
        """Return the path of the journal file that is being written; "" for none."""
        journals = self.driver.settings.journals if self.driver is not None else None
        return str(journals.path or "") if journals is not None else ""

    def _unready(self) -> str:
        """Return why this replica is not ready; "" if it leads and is up to date, or is on standby."""
        if self._name_taken:
            return self._name_taken
        driver = self.driver
        if driver is None:
            return "" if self._greeted else "the API server has not answered yet"
        pods, nodes = driver.informers.pods, driver.informers.nodes
        ages = {"pods": pods.stale_for(), "nodes": nodes.stale_for()}
        return unfresh(pods.synced.is_set() and nodes.synced.is_set(), ages)

    def _dump(self) -> dict[str, Any]:
        driver = self.driver
        if driver is None or driver.core is None:
            return {"leads": False}
        state = driver.core.state
        return {
            "leads": True,
            "counts": asdict(driver.counts),
            "nodes": len(state.node_index),
            "running": len(state.running),
            "waiting": len(state.pending),
            "in_part": [gang.key for gang in driver.workloads.partially_bound.in_part()],
            "leaving": {node: len(pods) for node, pods in driver.steps.binder.leaving.items()},
            "silent_s": driver.informers.stale_for(),
            "complaints": driver.translation.complaints,
        }

    async def _reread(self) -> None:
        """Use the profile file whenever it changes; if it is malformed, report that and keep the previous profile."""
        path, text = self.options.profile_file, self.profile.text
        while path is not None:
            await asyncio.sleep(REREAD)
            try:
                found = await asyncio.to_thread(path.read_text, encoding="utf-8")
                if found == text:
                    continue
                text = found
                self.profile = parse_profile(found, str(path))
            except (InputError, OSError, UnicodeDecodeError) as error:
                log_event(log, f"the previous profile stays in use: {error}", logging.ERROR)
                continue
            log_event(log, "the profile has changed", profile=self.profile.name)
            if self.driver is not None:
                self.driver.take_profile(self.profile)

    async def _until_stopped(self, work: Coroutine[None, None, None]) -> None:
        """Run a coroutine until it ends, or is cancelled because the replica is stopped."""
        task = asyncio.create_task(work)
        stop = asyncio.create_task(self.stopped.wait())
        await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        if stop.done() and self.driver is not None:
            await self.driver.effects.drain(1.0)  # so that the next leader finds no partially bound gang
        stop.cancel()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    async def _greet(self, client: ApiClient) -> None:
        """Wait for an API server that is reachable, new enough, and accepts Kant's credentials."""
        wait = 1.0
        while True:
            try:
                await require_version(client, OLDEST)
                return
            except ApiError as error:
                if not error.heals:
                    sentence = advice(error, self.config.source)
                    raise InputError("the API server", f"one that accepts our credentials ({sentence})") from None
                self.trouble(error)
                await asyncio.sleep(wait)
                wait = min(wait * 2, 30.0)

    async def _stand(self, client: ApiClient) -> None:
        """Stand for election, and lead while elected."""
        term = Term()
        if not self.options.leader_election:
            term.holds = lambda: True
            await self._lead(Ready(self._driver(client, term)))
            return
        keep = partial(client.may_be_carried_out, self.options.lease[0])
        async with (
            LeaseThread(self.config, self._lease, self.trouble, keep) as candidate,
            Standby(lambda: self._driver(client, term)) as standby,
        ):
            log_event(log, "waits for the Lease")
            term.token = token = await standby.until(candidate.elected())
            if self.options.shadow:  # shadow mode binds nothing, so no claim is needed
                log_event(log, "leads", token=token)
                term.holds = candidate.holds
                await self._lead(await standby.take())
                return
            async with self._claim() as claim:
                if await claim.granted(candidate.holds):
                    log_event(log, "leads", token=token)
                    term.holds = lambda: candidate.holds() and claim.holds()
                    await self._lead(await standby.take())

    def _claim(self) -> NameClaim:
        options = self.options

        def taken(why: str) -> None:
            self._name_taken = why
            self.telemetry.flag("kant_name_taken", bool(why))

        return NameClaim(
            self.config,
            options.scheduler_name,
            options.namespace,
            options.lease,
            self._in_flight(),
            self.trouble,
            taken,
        )

    def _lease(
        self, client: ApiClient, on_acquired: Callable[[str], None], on_trouble: Callable[[Exception], None]
    ) -> Lease:
        duration, deadline, retry = self.options.lease
        name, lease = self.options.scheduler_name, f"{self.options.namespace}/kant"

        def look(rival: dict[str, str]) -> None:
            other = rival.get(SCHEDULER, name)
            if other != name:
                expected = f"{other}, which holds the Lease {lease}, or a --namespace with a Lease of its own"
                on_trouble(InputError("--scheduler-name", expected, name))

        return Lease(
            client,
            self.options.namespace,
            "kant",
            duration=duration,
            renew_deadline=deadline,
            retry=retry,
            in_flight=self._in_flight(),
            on_acquired=on_acquired,
            on_trouble=on_trouble,
            notes=self._notes,
            on_rival=look,
        )

    def _notes(self, stood: dict[str, str]) -> dict[str, str]:
        """Return the annotations for the Lease. Present ones (`stood`) whose values are not known yet are kept."""
        self._stood = stood
        known = {key: stood.get(key, "") for key in (USED, QUEUES_KNOWN)}
        if (driver := self.driver) is not None:
            known[ANNOTATION] = driver.calibration_store.note
            known[USED] = driver.calibration_store.used or known[USED]
            known[QUEUES_KNOWN] = driver.translation.queues.presence.annotation(known[QUEUES_KNOWN])
        found = {PROFILE: self.profile.text, SCHEDULER: self.options.scheduler_name, VERSION: __version__}
        return found | ({TICKET: self._ticket} if self._ticket else {}) | {k: v for k, v in known.items() if v}

    def _in_flight(self) -> float:
        """Return the timeout (seconds) of a leader's requests: shorter than other replicas wait for the Lease."""
        duration, deadline, _ = self.options.lease
        return min(4.0, (duration - deadline) * 0.8)

    def _driver(self, client: ApiClient, term: Term) -> KubeDriver:
        options = self.options
        journals = Journals(options.journal, self.trouble, options.journal_bytes) if options.journal else None
        settings = replace(options, profile=self.profile, journals=journals)
        recorder = EventRecorder(client, own_identity(), on_trouble=self.trouble)
        driver = KubeDriver(
            client, settings, recorder, lambda: term.holds(), lambda: term.token, self.trouble, self.telemetry
        )
        driver.translation.queues.presence.word = lambda: self._stood.get(QUEUES_KNOWN, "")
        if options.page is not None:
            driver.on_core = self.led.follow
        if options.leader_election:
            driver.effects.timeout = self._in_flight()
        return driver

    async def _lead(self, ready: Ready) -> None:
        self.driver = driver = ready.driver
        if driver.settings.profile is not self.profile:  # the profile has changed since the driver was created
            driver.take_profile(self.profile)
        ready.led.set()
        self.telemetry.flag("kant_leader", True)
        informers = driver.informers
        self.telemetry.staleness = {"pods": informers.pods.stale_for, "nodes": informers.nodes.stale_for}
        try:
            await ready.running
        except* LeadershipLostError:
            log_event(log, "the Lease is lost: it was not renewed in time, or another replica has it", logging.WARNING)
        except* BehindError:
            log_event(
                log,
                "the watch did not show in time what the last leader bound: everything is read again",
                logging.WARNING,
            )
        finally:
            await ready.drop()
            self.driver = None
            self.led.leave()
            self.telemetry.flag("kant_leader", False)
            self.telemetry.staleness = {}

    def trouble(self, error: Exception) -> None:
        """Log an error, unless the same text was logged recently."""
        text = advice(error, self.config.source) if isinstance(error, ApiError) else str(error)
        if text not in self._said:
            self._said[text] = None
            if len(self._said) > 100:
                self._said.clear()
            log_event(log, text, logging.WARNING)
