"""`kant serve route`, `pick` and `mock`: routes to real engines, picks for Envoy, and test engines without a GPU."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from kant.cli.extras import needs
from kant.cli.inputs import check_seed, whole
from kant.cli.kube_options import Kube
from kant.cli.serve_engine import ENGINE, EngineOptions, engine_settings
from kant.model.errors import InputError

if TYPE_CHECKING:
    from kant.gateway.backend import Limits
    from kant.gateway.gossip import Address
    from kant.gateway.outliers import Ejection
    from kant.gateway.spans import RequestSpans
    from kant.kube.user.endpoints import ServiceEndpoints
    from kant.kube.user.inference_pool import PoolEndpoints


HERE = Kube()
MOST_EJECTED_S = 300.0
ServiceName = Annotated[
    str | None, Parameter(help="A Service of Kubernetes instead: its pods are the backends, as they come and go.")
]
PoolName = Annotated[
    str | None,
    Parameter(help="An InferencePool of Kubernetes instead: its pods, and the priorities of its objectives."),
]
ServicePort = Annotated[str, Parameter(help="The port of its pods, by name or number. Default: the only one.")]
EjectAfter = Annotated[
    int, Parameter(help="Failed answers in a row that eject a backend for a while. 0: never.", converter=whole)
]
EjectSeconds = Annotated[float, Parameter(help="Seconds of its first ejection; each further one takes twice as long.")]
Saturated = Annotated[
    float,
    Parameter(
        help="Send no more to a backend whose KV is full or whose next first token would take longer, by the latency"
        " model; more wait here, and tenants take turns. 0: never."
    ),
]
EventsPort = Annotated[
    int | None,
    Parameter(
        "--kv-events", help="Follow KV events at this port of each backend, for --router prefix.",
        converter=whole,
    ),
]  # fmt: skip
GossipAt = Annotated[
    str | None, Parameter("--gossip", help="Where others before the same engines are heard, HOST:PORT, over UDP.")
]
Peers = Annotated[str, Parameter(help="The others, HOST:PORT,…, or one name of all, such as a headless Service.")]
Certificate = Annotated[Path | None, Parameter(help="Answer over TLS with this certificate, PEM.")]
CertificateKey = Annotated[Path | None, Parameter(help="The key of the certificate, PEM.")]
Otlp = Annotated[
    str | None,
    Parameter(
        help="Send a span of each request to this OpenTelemetry collector, such as http://localhost:4318. Default: none"
        " is."
    ),
]
Shadow = Annotated[
    str | None,
    Parameter(help="Another router, which is asked what it would have decided, and moves nothing. Default: none is."),
]
TieSeed = Annotated[
    int | None,
    Parameter(
        help="The seed of random choices, such as between two equal backends. Default: a new one each time.",
        converter=whole,
        validator=check_seed,
    ),
]


def _seconds(option: str, value: float, least: float) -> float:
    if not least <= value <= 86400:
        raise InputError(option, f"a number of seconds from {least:g} to 86400", value)
    return value


def _count(option: str, value: int, least: int, most: int) -> int:
    if not least <= value <= most:
        raise InputError(option, f"a whole number from {least} to {most}", value)
    return value


def _ejection(after: int, seconds: float) -> Ejection:
    from kant.gateway.outliers import Ejection

    base = _seconds("--eject-s", seconds, 0.001)
    return Ejection(_count("--eject-after", after, 0, 1 << 20), base, max(base, MOST_EJECTED_S))


def _limits(in_flight: int, held: int, saturated_s: float) -> Limits:
    from math import inf

    from kant.gateway.backend import Limits

    return Limits(
        _count("--in-flight", in_flight, 1, 1 << 20),
        _count("--held", held, 0, 16_384),
        first_token_s=_seconds("--saturated-s", saturated_s, 0.0) or inf,
    )


def _events(port: int | None, router: str) -> int | None:
    """Check the port of KV events; raises InputError if they could not be used."""
    if port is None:
        return None
    if router != "prefix":
        raise InputError("--kv-events", "--router prefix, which reads them", router)
    with needs("kv-events"):
        import zmq

        del zmq
    return _count("--kv-events", port, 1, 65535)


def _tls(certificate: Path | None, key: Path | None) -> tuple[Path, Path] | None:
    """Return both files, or none; raises InputError for only one."""
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise InputError("--tls-cert and --tls-key", "both, or none")
    return certificate, key


def _spans(url: str | None, service: str) -> RequestSpans | None:
    """Return the exporter of spans, if there is a collector; raises InputError for no address."""
    if url is None:
        return None
    from kant.gateway.spans import RequestSpans
    from kant.live.otlp import traces_url

    return RequestSpans(traces_url(url, "--otlp"), service)


def _heard(gossip_at: str | None, peers: str) -> tuple[Address, list[Address]] | None:
    """Return where others are heard, and their addresses; raises InputError for only one of the two options."""
    from kant.gateway.server import address

    if (gossip_at is None) != (not peers):
        raise InputError("--gossip and --peers", "both, or none")
    if gossip_at is None:
        return None
    return address(gossip_at, "--gossip"), [address(peer, "--peers") for peer in peers.split(",") if peer]


def _log() -> logging.Logger:
    """Return a log on standard error of the events of backends."""
    from kant.live.logs import set_up

    set_up("logfmt")
    return logging.getLogger("kant.gateway")


def route(
    *,
    backends: Annotated[
        str | None, Parameter(help="Addresses of engines, such as http://a:8000,http://b:8000.")
    ] = None,
    service: ServiceName = None,
    port: ServicePort = "",
    policy: Annotated[str, Parameter(help="The policy that orders requests (see `kant serve policies`).")] = "fcfs",
    router: Annotated[str, Parameter(help="The router, which chooses the engine of a request.")] = "least-tokens",
    shadow: Shadow = None,
    listen: Annotated[str, Parameter(help="The address for clients, HOST:PORT.")] = "127.0.0.1:8080",
    operators: Annotated[
        str | None, Parameter(help="The address for operators, who drain backends there, HOST:PORT. Default: none.")
    ] = None,
    share_port: Annotated[
        bool, Parameter(help="Allow more routers to listen there, one for each core.", negative="")
    ] = False,
    tenants: Annotated[
        Path | None, Parameter(help="A TOML file of tenants, their keys and limits. Default: no limits.")
    ] = None,
    ranker: Annotated[
        Path | None, Parameter(help="A model of `kant serve train`: the policy's prediction of each output.")
    ] = None,
    in_flight: Annotated[int, Parameter(help="Requests at once on one backend; more wait.", converter=whole)] = 100_000,
    held: Annotated[int, Parameter(help="Requests that may wait in the router.", converter=whole)] = 10_000,
    saturated_s: Saturated = 0.0,
    hold_s: Annotated[float, Parameter(help="Seconds for which a request may wait in the router.")] = 30.0,
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
    eject_after: EjectAfter = 3,
    eject_s: EjectSeconds = 10.0,
    scrape_s: Annotated[float, Parameter(help="Seconds between two health checks of a backend.")] = 1.0,
    kv_events: EventsPort = None,
    drain_s: Annotated[float, Parameter(help="Seconds for requests in flight when the router stops.")] = 60.0,
    record: Annotated[
        Path | None, Parameter(help="Write a line for each request to this file: lengths, hashes, times, no text.")
    ] = None,
    tls_cert: Certificate = None,
    tls_key: CertificateKey = None,
    otlp: Otlp = None,
    gossip_at: GossipAt = None,
    peers: Peers = "",
    engine: EngineOptions = ENGINE,
    kube: Kube = HERE,
    seed: TieSeed = None,
) -> None:
    """Route requests to OpenAI-compatible engines with the simulator's policies and routers, until told to stop."""
    from functools import partial

    from kant.cli.show import console
    from kant.gateway.dispatch import Dispatcher
    from kant.gateway.gossip import Gossip
    from kant.gateway.proxy import ProxyOptions
    from kant.gateway.record import Record
    from kant.gateway.server import RouterServer, ServerOptions, address, run
    from kant.gateway.shadow import ShadowedDispatcher
    from kant.gateway.tenants import read_tenants, single_tenant
    from kant.gateway.timeouts import Timeouts
    from kant.serving.policies import policy_named
    from kant.serving.predictor import LengthRanker
    from kant.serving.routers import router_named

    _log()
    urls, source = _where(backends, service, port, kube)
    limits = _limits(in_flight, held, saturated_s)
    timeouts = Timeouts(
        _seconds("--first-byte-s", first_byte_s, 0.0), _seconds("--idle-s", idle_s, 0.0),
        _seconds("--total-s", total_s, 0.0),
    )  # fmt: skip
    proxy_options = ProxyOptions(_count("--retries", retries, 0, 100), _seconds("--hold-s", hold_s, 0.001), timeouts)
    ejection = _ejection(eject_after, eject_s)
    options = ServerOptions(
        listen,
        operators,
        share_port,
        _seconds("--scrape-s", scrape_s, 0.05),
        _seconds("--drain-s", drain_s, 0.0),
        _events(kv_events, router),
        _tls(tls_cert, tls_key),
    )
    address(listen, "--listen")
    spans, heard = _spans(otlp, "kant-router"), _heard(gossip_at, peers)
    chosen, choice = policy_named(policy), router_named(router)
    other = None if shadow is None else router_named(shadow, "--shadow")
    settings = engine_settings(engine)
    read = single_tenant if tenants is None else partial(read_tenants, tenants)
    allowed = read()
    model = None if ranker is None else LengthRanker.load(ranker)

    def make() -> RouterServer:
        given = urls, settings, chosen, choice, limits, seed, model, ejection
        dispatcher = Dispatcher(*given) if other is None else ShadowedDispatcher(*given, shadow=other)
        kept = None if record is None else Record(record, router, policy, shadow or "")
        gossip = None if heard is None else Gossip(dispatcher, *heard)
        return RouterServer(dispatcher, allowed, proxy_options, options, source, kept, read, spans, gossip)

    def ready(server: RouterServer) -> None:
        host = address(listen, "--listen")[0]
        number = len(server.dispatcher.backends)
        console.print(f"http://{host}:{server.port} routes to {number} backends", soft_wrap=True)
        if operators is not None:
            host = address(operators, "--operators")[0]
            console.print(f"http://{host}:{server.operators_port}/backends is for operators", soft_wrap=True)

    run(make, ready)


def pick(
    *,
    backends: Annotated[str | None, Parameter(help="Addresses of engines, such as http://10.0.0.1:8000.")] = None,
    service: ServiceName = None,
    port: ServicePort = "",
    pool: PoolName = None,
    policy: Annotated[str, Parameter(help="The policy that orders requests (see `kant serve policies`).")] = "fcfs",
    router: Annotated[str, Parameter(help="The router, which chooses the engine of a request.")] = "least-tokens",
    shadow: Shadow = None,
    listen: Annotated[str, Parameter(help="The address for Envoy, HOST:PORT.")] = "127.0.0.1:9002",
    in_flight: Annotated[int, Parameter(help="Requests at once on one backend; more wait.", converter=whole)] = 100_000,
    held: Annotated[int, Parameter(help="Requests that may wait in the picker.", converter=whole)] = 10_000,
    saturated_s: Saturated = 0.0,
    hold_s: Annotated[float, Parameter(help="Seconds for which a request may wait in the picker.")] = 30.0,
    eject_after: EjectAfter = 3,
    eject_s: EjectSeconds = 10.0,
    scrape_s: Annotated[float, Parameter(help="Seconds between two health checks of a backend.")] = 1.0,
    kv_events: EventsPort = None,
    tls_cert: Certificate = None,
    tls_key: CertificateKey = None,
    otlp: Otlp = None,
    gossip_at: GossipAt = None,
    peers: Peers = "",
    engine: EngineOptions = ENGINE,
    kube: Kube = HERE,
    seed: TieSeed = None,
) -> None:
    """Pick endpoints for Envoy: the Gateway API Inference Extension's protocol 1.0, until told to stop."""
    with needs("picker"):
        import grpc

        del grpc
    from kant.cli.show import console
    from kant.gateway.dispatch import Dispatcher
    from kant.gateway.gossip import Gossip
    from kant.gateway.picker import PickerServer
    from kant.gateway.server import address, run
    from kant.gateway.shadow import ShadowedDispatcher
    from kant.serving.policies import policy_named
    from kant.serving.routers import router_named

    _log()
    followed = None if pool is None else _pool(pool, backends or service or port, kube)
    urls, source = _where(backends, service, port, kube) if followed is None else ([], followed)
    objectives = None if followed is None else followed.priorities
    limits = _limits(in_flight, held, saturated_s)
    _seconds("--hold-s", hold_s, 0.001)
    _seconds("--scrape-s", scrape_s, 0.05)
    events, tls, spans = _events(kv_events, router), _tls(tls_cert, tls_key), _spans(otlp, "kant-picker")
    host = address(listen, "--listen")[0]
    heard = _heard(gossip_at, peers)
    settings, chosen, choice = engine_settings(engine), policy_named(policy), router_named(router)
    other, ejection = None if shadow is None else router_named(shadow, "--shadow"), _ejection(eject_after, eject_s)
    if shadow is not None and otlp is None:
        raise InputError("--shadow", "--otlp as well: a picker tells it in its spans", shadow)

    def make() -> PickerServer:
        given = urls, settings, chosen, choice, limits, seed, None, ejection
        dispatcher = Dispatcher(*given) if other is None else ShadowedDispatcher(*given, shadow=other)
        gossip = None if heard is None else Gossip(dispatcher, *heard)
        return PickerServer(dispatcher, listen, hold_s, scrape_s, source, events, tls, objectives, gossip, spans)

    def ready(server: PickerServer) -> None:
        number = len(server.dispatcher.backends)
        said = "" if followed is None else f" of {followed.where} ({followed.failure_mode})"
        console.print(f"{host}:{server.port} picks among {number} endpoints{said}", soft_wrap=True)

    run(make, ready)


def _where(
    backends: str | None, service: str | None, port: str, kube: Kube
) -> tuple[list[str], ServiceEndpoints | None]:
    """Return the addresses of `--backends`, or a follower of those of `--service`: exactly one."""
    if (backends is None) == (service is None):
        raise InputError("--backends and --service", "one of the two")
    if service is None:
        if port:
            raise InputError("--port", "--service as well", port)
        return _urls(backends or ""), None
    with needs("kube"):
        from kant.kube.connect.config import load
        from kant.kube.user.endpoints import ServiceEndpoints

    config = load(kube.kubeconfig, kube.context)
    return [], ServiceEndpoints(config, kube.namespace or config.namespace, service, port, _trouble)


def _pool(pool: str, other: str | None, kube: Kube) -> PoolEndpoints:
    """Return a follower of an InferencePool; raises InputError if `other` names backends, too."""
    if other:
        raise InputError("--pool", "no --backends, --service and --port with it", other)
    with needs("kube"):
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
        raise InputError("--backends", "addresses of engines, each once", backends)
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
    """An OpenAI-compatible engine without a GPU, which answers with the simulator's timing, until told to stop."""
    import asyncio
    import contextlib

    from kant.cli.show import console
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
