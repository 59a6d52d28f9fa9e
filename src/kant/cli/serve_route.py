"""`kant serve route`, `pick` and `mock`: routes to real engines, picks for Envoy, and test engines without a GPU."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from kant.cli.inputs import check_seed, whole
from kant.cli.kube_options import Kube
from kant.cli.serve_engine import ENGINE, EngineOptions, engine_settings
from kant.cli.show import console
from kant.gateway.outliers import Ejection
from kant.model.errors import InputError

if TYPE_CHECKING:
    from kant.gateway.dispatch import Dispatcher
    from kant.gateway.gossip import Gossip
    from kant.gateway.spans import RequestSpans
    from kant.kube.user.endpoints import ServiceEndpoints
    from kant.kube.user.inference_pool import PoolEndpoints
    from kant.serving.predictor import LengthRanker


HERE = Kube()
MOST_EJECTED_S = 300.0


@Parameter(name="*")
@dataclass(frozen=True)
class RouterOptions(EngineOptions):
    """Options of `kant serve route` and `pick`: the engines, and how a request's engine is chosen."""

    backends: Annotated[str | None, Parameter(help="Addresses of engines, such as http://a:8000,http://b:8000.")] = None
    service: Annotated[
        str | None, Parameter(help="A Service of Kubernetes instead: its pods are the backends, as they come and go.")
    ] = None
    port: Annotated[str, Parameter(help="The port of its pods, by name or number. Default: the only one.")] = ""
    policy: Annotated[str, Parameter(help="The policy that orders requests (see `kant serve policies`).")] = "fcfs"
    router: Annotated[str, Parameter(help="The router, which chooses the engine of a request.")] = "least-tokens"
    shadow: Annotated[
        str | None,
        Parameter(help="Another router, which is asked what it would have decided, without effect. Default: none."),
    ] = None
    in_flight: Annotated[int, Parameter(help="Requests at once on one backend; more wait.", converter=whole)] = 100_000
    held: Annotated[int, Parameter(help="Requests that may wait here.", converter=whole)] = 10_000
    saturated_s: Annotated[
        float,
        Parameter(
            help="Send no more to a backend whose KV is full or whose next first token would take longer, by the"
            " latency model; more wait here, and tenants take turns. 0: never."
        ),
    ] = 0.0
    hold_s: Annotated[float, Parameter(help="Seconds for which a request may wait here.")] = 30.0
    eject_after: Annotated[
        int, Parameter(help="Failed answers in a row that eject a backend for a while. 0: never.", converter=whole)
    ] = 3
    eject_s: Annotated[
        float, Parameter(help="Seconds of the first ejection; each further one takes twice as long.")
    ] = 10.0
    scrape_s: Annotated[float, Parameter(help="Seconds between two health checks of a backend.")] = 1.0
    kv_events: Annotated[
        int | None,
        Parameter(help="Follow KV events at this port of each backend, for --router prefix.", converter=whole),
    ] = None
    tls_cert: Annotated[Path | None, Parameter(help="Answer over TLS with this certificate, PEM.")] = None
    tls_key: Annotated[Path | None, Parameter(help="The key of the certificate, PEM.")] = None
    otlp: Annotated[
        str | None,
        Parameter(
            help="Send a span of each request to this OpenTelemetry collector, such as http://localhost:4318. Default:"
            " none."
        ),
    ] = None
    gossip: Annotated[
        str | None, Parameter(help="The UDP address, HOST:PORT, where this router hears others of the same engines.")
    ] = None
    peers: Annotated[
        str, Parameter(help="The other routers, HOST:PORT,…, or one name for all, such as a headless Service.")
    ] = ""
    seed: Annotated[
        int | None,
        Parameter(
            help="The seed of random choices, such as between two equal backends. Default: a new one each time.",
            converter=whole,
            validator=check_seed,
        ),
    ] = None


ROUTER = RouterOptions()


def _seconds(option: str, value: float, least: float) -> float:
    if not least <= value <= 86400:
        raise InputError(option, f"a number of seconds from {least:g} to 86400", value)
    return value


def _count(option: str, value: int, least: int, most: int) -> int:
    if not least <= value <= most:
        raise InputError(option, f"a whole number from {least} to {most}", value)
    return value


def _dispatching(
    options: RouterOptions, urls: list[str], ranker: LengthRanker | None = None
) -> Callable[[], Dispatcher]:
    """Check the options of a dispatcher; return a function that creates it in its event loop. Raises InputError."""
    from kant.gateway.aside import Aside
    from kant.gateway.backend import Limits
    from kant.gateway.dispatch import Dispatcher
    from kant.gateway.shadow import ShadowedDispatcher
    from kant.service.router_process import RouterProcess
    from kant.serving.policies import policy_named
    from kant.serving.routers import router_named

    rule, way = policy_named(options.policy), router_named(options.router)
    limits = Limits(
        _count("--in-flight", options.in_flight, 1, 1 << 20),
        _count("--held", options.held, int(way.costly), 16_384),
        first_token_s=_seconds("--saturated-s", options.saturated_s, 0.0) or inf,
    )
    base = _seconds("--eject-s", options.eject_s, 0.001)
    ejection = Ejection(_count("--eject-after", options.eject_after, 0, 1 << 20), base, max(base, MOST_EJECTED_S))
    given = urls, engine_settings(options), rule, way, limits, options.seed, ranker, ejection
    other = None if options.shadow is None else router_named(options.shadow, "--shadow")
    if other is not None and other.costly:
        expected = "a router that decides at once (`kant serve whatif` can test the others)"
        raise InputError("--shadow", expected, options.shadow)

    def make() -> Dispatcher:
        made = Dispatcher(*given) if other is None else ShadowedDispatcher(*given, shadow=other)
        if way.costly:
            made.aside = Aside(RouterProcess())
        return made

    return make


def _events(options: RouterOptions) -> int | None:
    """Return the port of KV events; raises InputError if nothing would use them."""
    if options.kv_events is None:
        return None
    if options.router != "prefix":
        raise InputError("--kv-events", "--router prefix, which uses them", options.router)
    importlib.import_module("zmq")  # installed by an extra
    return _count("--kv-events", options.kv_events, 1, 65535)


def _tls(options: RouterOptions) -> tuple[Path, Path] | None:
    """Return certificate and key, or None; raises InputError if only one is given."""
    if (options.tls_cert is None) != (options.tls_key is None):
        raise InputError("--tls-cert and --tls-key", "both, or none")
    return None if options.tls_cert is None or options.tls_key is None else (options.tls_cert, options.tls_key)


def _spans(url: str | None, service: str) -> RequestSpans | None:
    """Return the exporter of spans, or None without a collector; raises InputError for an invalid address."""
    if url is None:
        return None
    from kant.gateway.spans import RequestSpans
    from kant.live.otlp import traces_url

    return RequestSpans(traces_url(url, "--otlp"), service)


def _gossiping(options: RouterOptions) -> Callable[[Dispatcher], Gossip | None]:
    """Return a function that creates the exchange with other routers of the same engines. Raises InputError if only one
    of the options is given.
    """
    from kant.gateway.gossip import Gossip
    from kant.gateway.server import address

    if (options.gossip is None) != (not options.peers):
        raise InputError("--gossip and --peers", "both, or none")
    if options.gossip is None:
        return lambda dispatcher: None
    own = address(options.gossip, "--gossip")
    others = [address(peer, "--peers") for peer in options.peers.split(",") if peer]
    return lambda dispatcher: Gossip(dispatcher, own, others)


def _log() -> logging.Logger:
    """Return a log of the events of backends, on standard error."""
    from kant.live.logs import set_up

    set_up("logfmt")
    return logging.getLogger("kant.gateway")


def route(
    *,
    options: RouterOptions = ROUTER,
    listen: Annotated[str, Parameter(help="The address for clients, HOST:PORT.")] = "127.0.0.1:8080",
    operators: Annotated[
        str | None, Parameter(help="The address for operators, who drain backends there, HOST:PORT. Default: none.")
    ] = None,
    share_port: Annotated[
        bool, Parameter(help="Allow further routers to listen there, one for each core.", negative="")
    ] = False,
    tenants: Annotated[
        Path | None, Parameter(help="A TOML file of tenants, their keys and limits. Default: no limits.")
    ] = None,
    ranker: Annotated[
        Path | None, Parameter(help="A model from `kant serve train`: the policy's prediction of output lengths.")
    ] = None,
    retries: Annotated[
        int, Parameter(help="How many other backends are tried after one has not accepted a request.", converter=whole)
    ] = 2,
    first_byte_s: Annotated[
        float,
        Parameter(help="Timeout in seconds until a backend begins its answer, or ends one without a stream. 0: none."),
    ] = 600.0,
    idle_s: Annotated[float, Parameter(help="Timeout in seconds between two pieces of an answer. 0: none.")] = 300.0,
    total_s: Annotated[
        float, Parameter(help="Timeout in seconds from a request to the end of its answer. 0: none.")
    ] = 0.0,
    drain_s: Annotated[float, Parameter(help="Seconds for requests in flight when the router stops.")] = 60.0,
    record: Annotated[
        Path | None, Parameter(help="Write a line for each request to this file: lengths, hashes, times, no text.")
    ] = None,
    kube: Kube = HERE,
) -> None:
    """Route requests to OpenAI-compatible engines with the simulator's policies and routers, until stopped."""
    from kant.gateway.proxy import ProxyOptions
    from kant.gateway.record import Record
    from kant.gateway.server import RouterServer, ServerOptions, address, run
    from kant.gateway.tenants import read_tenants, single_tenant
    from kant.gateway.timeouts import Timeouts
    from kant.serving.predictor import LengthRanker

    _log()
    urls, source = _where(options, kube)
    dispatcher = _dispatching(options, urls, None if ranker is None else LengthRanker.load(ranker))
    timeouts = Timeouts(
        _seconds("--first-byte-s", first_byte_s, 0.0), _seconds("--idle-s", idle_s, 0.0),
        _seconds("--total-s", total_s, 0.0),
    )  # fmt: skip
    proxy = ProxyOptions(_count("--retries", retries, 0, 100), _seconds("--hold-s", options.hold_s, 0.001), timeouts)
    serving = ServerOptions(
        listen,
        operators,
        share_port,
        _seconds("--scrape-s", options.scrape_s, 0.05),
        _seconds("--drain-s", drain_s, 0.0),
        _events(options),
        _tls(options),
    )
    host = address(listen, "--listen")[0]
    spans, gossip = _spans(options.otlp, "kant-router"), _gossiping(options)
    read = single_tenant if tenants is None else partial(read_tenants, tenants)
    allowed = read()

    def make() -> RouterServer:
        made = dispatcher()
        kept = None if record is None else Record(record, options.router, options.policy, options.shadow or "")
        return RouterServer(made, allowed, proxy, serving, source, kept, read, spans, gossip(made))

    def ready(server: RouterServer) -> None:
        number = len(server.dispatcher.backends)
        console.print(f"http://{host}:{server.port} routes to {number} backends", soft_wrap=True)
        if operators is not None:
            place = f"http://{address(operators, '--operators')[0]}:{server.operators_port}/backends"
            console.print(f"{place} is for operators", soft_wrap=True)

    run(make, ready)


def pick(
    *,
    options: RouterOptions = ROUTER,
    pool: Annotated[
        str | None,
        Parameter(help="An InferencePool of Kubernetes instead: its pods, and the priorities of its objectives."),
    ] = None,
    listen: Annotated[str, Parameter(help="The address for Envoy, HOST:PORT.")] = "127.0.0.1:9002",
    metrics: Annotated[
        str | None, Parameter(help="The address of GET /metrics for Prometheus, HOST:PORT. Default: none.")
    ] = None,
    kube: Kube = HERE,
) -> None:
    """Pick endpoints for Envoy by the Gateway API Inference Extension's protocol 1.0, until stopped."""
    from kant.gateway.picker import PickerServer
    from kant.gateway.server import address, run

    _log()
    followed = None if pool is None else _pool(pool, options.backends or options.service or options.port, kube)
    urls, source = _where(options, kube) if followed is None else ([], followed)
    objectives = None if followed is None else followed.priorities
    dispatcher = _dispatching(options, urls)
    hold_s = _seconds("--hold-s", options.hold_s, 0.001)
    scrape_s = _seconds("--scrape-s", options.scrape_s, 0.05)
    events, tls, spans = _events(options), _tls(options), _spans(options.otlp, "kant-picker")
    host, gossip = address(listen, "--listen")[0], _gossiping(options)
    if options.shadow is not None and options.otlp is None:
        raise InputError("--shadow", "--otlp as well: a picker reports it in its spans", options.shadow)

    def make() -> PickerServer:
        made = dispatcher()
        return PickerServer(
            made, listen, hold_s, scrape_s, source, events, tls, objectives, gossip(made), spans, metrics
        )

    def ready(server: PickerServer) -> None:
        number = len(server.dispatcher.backends)
        said = "" if followed is None else f" of {followed.where} ({followed.failure_mode})"
        console.print(f"{host}:{server.port} picks among {number} endpoints{said}", soft_wrap=True)
        if metrics is not None:
            at = f"{address(metrics, '--metrics')[0]}:{server.picker.metrics.port}"
            console.print(f"http://{at}/metrics is for Prometheus", soft_wrap=True)

    run(make, ready)


def _where(options: RouterOptions, kube: Kube) -> tuple[list[str], ServiceEndpoints | None]:
    """Return the addresses of `--backends`, or a follower of the endpoints of `--service`; exactly one is given."""
    service = options.service
    if (options.backends is None) == (service is None):
        raise InputError("--backends and --service", "exactly one of them")
    if service is None:
        if options.port:
            raise InputError("--port", "--service as well", options.port)
        return _urls(options.backends or ""), None
    from kant.kube.connect.config import load
    from kant.kube.user.endpoints import ServiceEndpoints

    config = load(kube.kubeconfig, kube.context)
    return [], ServiceEndpoints(config, kube.namespace or config.namespace, service, options.port, _trouble)


def _pool(pool: str, other: str | None, kube: Kube) -> PoolEndpoints:
    """Return a follower of an InferencePool; raises InputError if `other` names backends too."""
    if other:
        raise InputError("--pool", "no --backends, --service or --port with it", other)
    from kant.kube.connect.config import load
    from kant.kube.user.inference_pool import PoolEndpoints

    config = load(kube.kubeconfig, kube.context)
    return PoolEndpoints(config, kube.namespace or config.namespace, pool, _trouble)


def _trouble(sentence: str) -> None:
    """Log why the backends cannot be read."""
    from kant.live.logs import log_event

    log_event(logging.getLogger("kant.gateway"), "backends", logging.WARNING, error=sentence)


def _urls(backends: str) -> list[str]:
    """Parse the addresses of `--backends`, each once."""
    from kant.gateway.proxy import origin

    urls = [origin(url) for url in backends.split(",") if url.strip()]
    if not urls or len(set(urls)) < len(urls):
        raise InputError("--backends", "addresses of engines, without duplicates", backends)
    return urls


def mock(
    *,
    listen: Annotated[str, Parameter(help="The address for clients, HOST:PORT.")] = "127.0.0.1:8000",
    policy: Annotated[str, Parameter(help="The policy that orders requests (see `kant serve policies`).")] = "fcfs",
    speed: Annotated[float, Parameter(help="The speed relative to the modelled engine.")] = 1.0,
    conducted: Annotated[
        bool, Parameter(help="For tests: the clock advances only when a client posts to /clock.", negative="")
    ] = False,
    engine: EngineOptions = ENGINE,
) -> None:
    """Run an OpenAI-compatible engine without a GPU, which answers with the simulator's timing, until stopped."""
    from kant.gateway.mock import MockEngine, serve
    from kant.gateway.server import address
    from kant.serving.policies import policy_named

    host, port = address(listen, "--listen")
    settings, chosen = engine_settings(engine), policy_named(policy)

    async def main() -> None:
        ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        served = MockEngine(settings, chosen, engine.model, conducted, speed)
        task = asyncio.create_task(serve(served, host, port, ready))
        task.add_done_callback(lambda _: ready.cancel())
        with contextlib.suppress(asyncio.CancelledError):
            opened = await ready
            console.print(f"http://{host}:{opened} answers as {engine.model} on {engine.gpu}", soft_wrap=True)
        await task

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
