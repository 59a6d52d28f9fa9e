"""`kant up`: runs Kant on one home, from taking the home's lock until Kant stops."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import signal
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kant.compiled import as_written
from kant.insight.expected_start import StartForecast
from kant.insight.moment import Moment
from kant.live.journals import Journals
from kant.live.logs import log_event, set_up
from kant.live.rounds import LiveRounds
from kant.live.warm import warm
from kant.local import cgroups, machine, nvml
from kant.local.clock import Offset, steady_clock
from kant.local.driver import LocalDriver
from kant.local.gpu_health import GpuHealth
from kant.local.gpu_use import GpuUse
from kant.local.joined.keys import address as join_address
from kant.local.joined.keys import make_keys
from kant.local.joined.machines import LEASE_S, Machines
from kant.local.power import NO_CAPS, PowerCaps, capped, powered, powered_by
from kant.local.record import JobRecord
from kant.local.settings import NO_QUEUES, LocalSettings
from kant.local.slurm_commands import write_shims
from kant.local.telemetry import LocalTelemetry
from kant.model.errors import InputError
from kant.model.node import ClusterSpec
from kant.model.tenant import QueueConfig
from kant.model.units import DAY, GPU
from kant.scheduler.profile import Profile
from kant.service.callers import Callers, page_token
from kant.service.client import SOCKET
from kant.service.events import Events
from kant.service.forecaster import ForecastProcess
from kant.service.front_ends import FrontEnds
from kant.service.guard import Guard, address, is_loopback
from kant.service.http import RouteHandlers
from kant.service.notices import NONE as NO_NOTICES
from kant.service.notices import NoticeFile, NoticeSender
from kant.service.prune import Places, Pruner, in_doubt, wanted
from kant.service.questions import LocalQuestions
from kant.service.recorded import Recorded
from kant.service.reload import Files, Reloader, check_quotas
from kant.service.roles import Caller, Role
from kant.service.server import HttpServer
from kant.service.slot_keeper import SlotKeeper
from kant.service.socket_access import check_users
from kant.service.solver_process import SolverProcess
from kant.service.store import JobStore, StoreFullError
from kant.service.traces import Traces
from kant.service.waits_store import WaitsWriter, read_learned, read_waits

if TYPE_CHECKING:
    from kant.service.oidc import Oidc

log = logging.getLogger("kant.service")
NO_FILES = Files()
JOIN = "join"
"""The folder in the home with the certificates for machines that join."""
COMPILING = "its kernels compile: until then it uses slower ones"
COMPILER = "kernels"
"""The name of the thread that compiles the Numba code."""
REMEMBERED = 2_000
"""The number of finished jobs (the latest) from which start forecasts learn run times when Kant starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonOptions:
    """Options of `kant up`. `cluster`: None for this machine. `token_file`: tokens in addition to those of the home.

    `proxy_names`: see `Guard`. `any_port`: if the port of `listen` is in use, use a free port. `on_listen` is called
    with the address and the owner's token. An interactive job whose GPUs idle for `idle_s` seconds is stopped (0:
    never). Jobs that ended more than `keep_days` ago are pruned (0: never). `front_ends` processes accept short jobs.
    Members of the group `users` may open the socket, and each job runs as its user ("": only Kant's owner may, and all
    jobs run as the owner). The address uses HTTPS if `files` has a certificate. `oidc` identifies further callers.
    Traces of jobs are posted to the URL `traces`. Other machines join at `join_listen`, and continue their runs for up
    to `lease_s` seconds after Kant's last message. `power`: the power caps of this machine, and of all together.
    """

    home: Path
    profile: Profile
    cluster: ClusterSpec | None = None
    queue_config: QueueConfig = NO_QUEUES
    listen: str = ""
    any_port: bool = False
    token_file: Path | None = None
    oidc: Oidc | None = None
    proxy_names: tuple[str, ...] = ()
    on_listen: Callable[[str, str], None] = lambda address, token: None
    log_bytes: int = 1 << 30
    idle_s: float = 0.0
    power: PowerCaps = NO_CAPS
    keep_days: int = 0
    users: str = ""
    front_ends: int = 0
    files: Files = NO_FILES
    notices: NoticeFile = NO_NOTICES
    traces: str = ""
    join_listen: str = ""
    lease_s: float = LEASE_S
    log_format: str = "logfmt"
    log_level: str = "info"


def serve(options: DaemonOptions) -> int:
    """Schedule until SIGTERM, SIGINT or `kant down`. Raises InputError."""
    if sys.platform != "linux":
        raise InputError("this machine", "Linux, whose /proc and pidfds Kant uses to manage processes", sys.platform)
    set_up(options.log_format, options.log_level)
    check_quotas(options.profile, options.queue_config)
    callers = Callers(options.home, options.token_file, options.oidc)
    if options.listen:
        address(options.listen, callers.is_shared)
    tls = options.files.certificate.context() if options.files.certificate is not None else None
    mask = os.umask(0o077)  # the environment of a job may contain secrets
    try:
        with locked(options.home), ExitStack() as slow:
            store = JobStore(options.home / "kant.db")
            try:
                asyncio.run(_serve(options, store, callers, tls, slow))
            except StoreFullError as error:
                raise InputError("the store", f"a disk that can be written ({error})") from None
            finally:
                store.close()
    finally:
        os.umask(mask)
    if any(thread.name == COMPILER for thread in threading.enumerate()):
        sys.stdout.flush()
        os._exit(0)  # the LLVM compiler cannot be interrupted, and nothing is left to do
    return 0


async def _serve(
    options: DaemonOptions, store: JobStore, callers: Callers, tls: ssl.SSLContext | None, slow: ExitStack
) -> None:
    """Run Kant until it is stopped. While `slow` is open, the code for Numba runs as plain Python, not yet compiled."""
    began = time.monotonic()
    group = check_users(options.users, options.home) if options.users else None
    offset = store.kept("clock")
    if store.last()[0] == 0 and any((options.home / "runs").glob("*")):
        raise InputError(str(store.path), "the store of the jobs in runs/ beside it, or no runs/", "none")
    latest = store.last()[1]
    clock = steady_clock(msgspec.json.decode(offset, type=Offset) if offset is not None else None, latest)
    store.keep("clock", msgspec.json.encode(clock.offset))
    journals = Journals(options.home / "journal", lambda error: log_event(log, str(error), logging.WARNING))
    devices = machine.devices() if options.cluster is None else []
    library = nvml.load() if devices else None
    if library is None and options.idle_s:
        raise InputError("--idle-gpus", "GPUs that NVML can query on this machine")
    cluster = options.cluster or machine.this_machine(devices)
    here = machine.found_here(cluster, devices) if options.cluster is None else ""
    power, watts, shared_power = options.power, 0, -1
    if power != NO_CAPS:
        watts = power.gpu or machine.gpu_watts(devices)
    if power.machine:
        nodes = tuple(capped(node, power.machine, watts) for node in cluster.nodes)
        cluster = msgspec.structs.replace(cluster, nodes=nodes)
        most = powered(nodes[0]) // GPU
        here += f"; its power cap allows {most} of its GPUs in use, each at up to {watts} W" if here else ""
    if power.pool:
        shared_power = powered_by(power.pool, watts, "--pool-power-cap")
        most = shared_power // GPU
        all_of_them = f"the power cap of all machines allows {most} GPUs in use, each at up to {watts} W"
        here = "; ".join(filter(None, (here, all_of_them)))
    if here:
        log_event(log, here)
    machines = Machines(len(cluster.nodes), store.kept("machines"), partial(store.keep, "machines"), options.lease_s)
    machines.gpu_watts = watts if power.pool else 0
    cluster = machines.added_to(cluster)
    if options.join_listen and group is not None:
        raise InputError("--join-listen and --users", "only one, since machines that join run all jobs as one user")
    settings = LocalSettings(
        cluster, options.profile, options.home / "runs", options.queue_config, journals, options.log_bytes,
        cores=machine.own_cores() if options.cluster is None else (), cgroups=cgroups.prepare(),
        as_users=group is not None, visible=machine.visible(devices),
        trace_key=trace_key(store) if options.traces else b"", shared_power=shared_power,
    )  # fmt: skip
    write_shims(settings.shims, sys.executable)
    driver = LocalDriver(settings, store, clock, machines)
    driver.telemetry = telemetry = LocalTelemetry(driver.jobs, lambda: driver.trouble)
    recorded = Recorded(lambda job: driver.jobs.records.get(job) or store.record(job))
    driver.on_build, driver.on_built = recorded.begin_rebuild, recorded.finish_rebuild
    driver.waited, driver.waited_by = read_waits(store), recorded.waited
    driver.finished, driver.learned = (lambda: store.finished(REMEMBERED)), read_learned(store)
    driver.reservations.keep = lambda text: store.keep("reservations", text)
    driver.reservations.restore(store.kept("reservations"))
    driver.paused = msgspec.json.decode(store.kept("paused") or b"[]", type=frozenset[str])
    driver.adopt(store.live())
    slow.enter_context(as_written())
    driver.build()
    events, stop = Events(), asyncio.Event()
    tasks: list[asyncio.Task[None]] = []
    notifier = NoticeSender(options.notices, settings.as_users)
    for record in driver.jobs.records.values():
        notifier.know(record)
    followers: list[Callable[[JobRecord], None]] = [events.changed, telemetry.changed, notifier.changed]
    tasks.append(asyncio.create_task(notifier.run()))
    if options.oidc is not None:
        tasks.append(asyncio.create_task(options.oidc.refresh_keys()))
    if options.traces:
        traces = Traces(options.traces, settings.trace_key, clock.micros)
        for record in driver.jobs.records.values():
            traces.know(record)
        followers.append(traces.changed)
        tasks.append(asyncio.create_task(traces.run()))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    own = page_token(options.home) if options.listen else ""
    guard = Guard(callers, store, clock.micros, options.proxy_names)
    forecaster, solver = ForecastProcess(), SolverProcess()
    driver.rounds = LiveRounds(solver, driver.wake)
    compiled, reload_now = asyncio.Event(), asyncio.Event()

    async def forecast(moment: Moment) -> StartForecast:
        """Return the forecaster's answer. First wait for the compilation, so that the forecaster's process reads the
        compiled code from the cache.
        """
        await compiled.wait()
        return await forecaster(moment)

    questions = LocalQuestions(driver, store, recorded, forecast, solver)
    questions.starting, questions.here = COMPILING, here
    reloader = Reloader(driver, notifier, options.files, tls)
    telemetry.optimality = questions.optimality.latest
    driver.gpu_use = GpuUse(devices, options.idle_s)
    if library is not None:
        driver.health = health = GpuHealth(library, devices)
        health.changed, health.used = driver.wake, driver.gpus_used
        tasks.append(asyncio.create_task(health.watch()))
    questions.complaint = lambda: "; ".join(
        filter(None, (driver.disk_complaint, reloader.complaint, driver.gpu_complaint))
    )
    hang_up = stop if sys.stdin is not None and sys.stdin.isatty() else reload_now  # closing the terminal stops Kant
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hang_up.set)
    service = RouteHandlers(questions, events, stop, guard)
    socket = options.home / SOCKET
    keeper = SlotKeeper(driver, service.orders, Caller(callers.owner, Role.OPERATOR, origin="front ends"))
    driver.on_change = _each(*followers, keeper.changed)

    def keep_paused(queues: frozenset[str]) -> None:
        store.keep("paused", msgspec.json.encode(sorted(queues)))
        keeper.close()  # otherwise a front end would continue

    driver.keep_paused = keep_paused
    async with (
        HttpServer(service, socket, options.listen, options.any_port, tls, group) as server,
        FrontEnds(options.home, options.front_ends, driver, keeper),
    ):
        join_server = None
        if options.join_listen:
            make_keys(options.home / JOIN)
            join_server = await machines.serve(
                *join_address(options.join_listen, "--join-listen"), options.home / JOIN, options.home / SOCKET
            )
        if tls is None and not is_loopback(options.listen):
            advice = "--tls-cert, or a loopback address behind a proxy with TLS"
            log_event(log, "tokens are sent unencrypted", logging.WARNING, listen=server.address, expected=advice)
        log_event(
            log, "up", home=str(options.home), cluster=cluster.name, nodes=len(cluster.nodes), gpus=cluster.gpus,
            profile=options.profile.name, jobs=len(driver.jobs.records), seconds=round(time.monotonic() - began, 3),
            listen=server.address, memory_by="cgroups" if settings.cgroups is not None else "looking",
        )  # fmt: skip
        waits = WaitsWriter(store, driver)

        async def prepare() -> None:
            """Compile the Numba code in a thread, while jobs start and requests are answered in plain Python."""
            try:
                await _compiled(options.profile)
            except BaseException:
                stop.set()
                raise
            slow.close()
            compiled.set()
            questions.starting = ""
            log_event(log, "ready", seconds=round(time.monotonic() - began, 3))
            tasks.append(asyncio.create_task(reloader.run(reload_now)))
            tasks.append(asyncio.create_task(waits.run()))
            tasks.append(asyncio.create_task(recorded.remember(journals)))
            tasks.append(asyncio.create_task(questions.forecasts.keep_up(lambda: driver.core)))
            tasks.append(asyncio.create_task(questions.optimality.keep_up(lambda: driver.core)))
            if options.keep_days:
                keep, places = options.keep_days * DAY, Places(settings.runs, journals, options.home / "kant.log")
                pruner = Pruner(store, places, keep, clock.micros, lambda: wanted(driver), telemetry.pruned)
                tasks.append(asyncio.create_task(pruner.run(in_doubt(latest, clock.micros(), keep))))

        preparing = asyncio.create_task(prepare())
        if server.address:
            options.on_listen(server.address, own)
        try:
            await driver.run(stop)
        finally:
            for task in (preparing, *tasks):
                if task is not preparing or not task.done():
                    task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            driver.rounds.close()
            await forecaster.close()
            await solver.close()
            waits.write()
            if join_server is not None:
                join_server.close()
        if preparing.done() and not preparing.cancelled():
            preparing.result()  # raises the error if the code cannot be compiled
    log_event(log, "down", running=len(driver.launcher.runs))


async def _compiled(profile: Profile) -> None:
    """Compile the Numba code in a thread that does not delay the end of the process. Raises the errors of the
    compilation.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def end(error: BaseException | None) -> None:
        if not done.cancelled():
            done.set_result(None) if error is None else done.set_exception(error)

    def work() -> None:
        error: BaseException | None = None
        try:
            warm(profile, ahead=True)
        except BaseException as found:
            error = found
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(end, error)

    threading.Thread(target=work, name=COMPILER, daemon=True).start()
    await done


def _each(*followers: Callable[[JobRecord], None]) -> Callable[[JobRecord], None]:
    def changed(record: JobRecord) -> None:
        for follower in followers:
            follower(record)

    return changed


def trace_key(store: JobStore) -> bytes:
    """Return the key from which the ids of traces are derived; it is created once for each store."""
    if (key := store.kept("traces")) is None:
        store.keep("traces", key := os.urandom(16))
    return key


@contextmanager
def locked(home: Path) -> Iterator[None]:
    """Hold the lock of the home; Linux releases it however the process ends. Raises InputError."""
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = os.open(home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InputError(f"--home {home}", f"a folder that can be written ({error.strerror})") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        other = os.read(file, 32).decode(errors="replace").strip()
        os.close(file)
        raise InputError(f"--home {home}", f"a home that no other Kant uses (process {other} does)") from None
    try:
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(file)
