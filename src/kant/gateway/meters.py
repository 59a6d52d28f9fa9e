"""The router's Prometheus metrics. Labels are backends, models and the tenants of the tenants file: never free text."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from kant.gateway.backend import Backend, Placement
from kant.gateway.dispatch import Dispatcher

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)

BACKENDS: dict[str, tuple[str, Callable[[Backend], float]]] = {
    "in_flight": ("Requests on a backend.", lambda one: len(one.rows)),
    "tokens": ("Tokens of the requests on a backend, as tracked.", lambda one: one.site.tokens()),
    "up": ("1 where a backend answers.", lambda one: one.up),
    "ejected": ("1 while a backend gets no new requests because its answers fail.", lambda one: one.health.ejected),
    "draining": ("1 while a backend gets no further requests.", lambda one: one.draining or one.leaving),
    "other_requests": ("Requests on a backend from elsewhere, as it reports.", lambda one: one.site.other_requests),
    "engine_running": ("Running requests, as the engine reports.", lambda one: one.scraped.running),
    "engine_waiting": ("Waiting requests, as the engine reports.", lambda one: one.scraped.waiting),
    "engine_kv_usage": ("Share of the KV in use, as the engine reports.", lambda one: one.scraped.usage),
}
"""The gauges of each backend: the meaning of each, and its value."""


class Meters:
    """The metrics of one router."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()

        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(f"kant_router_{name}", about, labels, registry=registry)

        def gauge(name: str, about: str, *labels: str) -> Gauge:
            return Gauge(f"kant_router_{name}", about, labels, registry=registry)

        def seconds(name: str, about: str) -> Histogram:
            return Histogram(f"kant_router_{name}_seconds", about, buckets=SECONDS, registry=registry)

        self.arrivals = counter("arrivals", "Requests that have arrived to be routed.")
        self.requests = counter("requests", "Ended requests, by backend and status.", "backend", "status")
        self.refused = counter("refused", "Requests that reached no backend, by status.", "status")
        self.limited = counter("tenant_limited", "Requests over a tenant's limits.", "tenant")
        self.retried = counter("retries", "Requests sent again, as a backend was away, refused or closed.", "backend")
        self.over_budget = counter(
            "retries_over_budget", "Requests not retried, since too many retries were in flight."
        )
        late = "Requests whose backend took too long, by whether its response had begun."
        self.timed_out = counter("timeouts", late, "backend", "begun")
        self.ejections = counter("ejections", "Times that a backend was ejected because its answers failed.", "backend")
        self.lost = counter("lost", "Responses that had begun and were cut short by their backend.", "backend")
        self.gone = counter("clients_gone", "Requests whose client has disconnected.")
        self.tokens = counter("output_tokens", "Tokens of outputs, as counted from streams.", "backend")
        self.prompt = counter("prompt_tokens", "Tokens of prompts, as estimated.")
        had = "Tokens of tenants, by model and kind: prompt or output."
        self.usage = counter("tenant_tokens", had, "tenant", "model", "kind")
        self.shed = counter("shed", "Requests refused as too many waited, by tenant.", "tenant")
        other = "Requests by what --shadow would have done: the same, another backend, or hold them."
        self.shadow = counter("shadow", other, "decision")
        later = "By how much first tokens would have come later, or earlier, where --shadow would have sent requests."
        self.shadow_s = counter("shadow_first_token_seconds", later, "than")
        self.held_s = seconds("held", "How long requests were held.")
        self.first_s = seconds("first_token", "From the request to the first piece of its answer.")
        self.whole_s = seconds("request", "From the request to the end of its answer.")
        self.held = gauge("held", "Requests that are held now.")
        self.held_by_tenant = gauge("tenant_held", "Requests that are held now, by tenant.", "tenant")
        self.waiting: set[str] = set()
        self.panic = gauge("panic", "1 while every open backend is ejected, so that all are used.")
        self.shown: set[int] = set()
        self.backends = {gauge(f"backend_{name}", about, "backend"): of for name, (about, of) in BACKENDS.items()}

    def opinion(self, placed: Placement) -> None:
        """Count the shadow router's decision about a request, if there is a shadow."""
        if placed.opinion is None:
            return
        other, later_s, agrees = placed.opinion
        self.shadow.labels("hold" if other is None else "same" if agrees else "other").inc()
        self.shadow_s.labels("later" if later_s > 0 else "earlier").inc(abs(later_s))

    def text(self, dispatcher: Dispatcher) -> bytes:
        """Return all current metrics in Prometheus' text format."""
        self.held.set(dispatcher.waiting)
        waits = dispatcher.shares.waits
        for tenant in self.waiting - waits.keys():
            self.held_by_tenant.remove(tenant)
        self.waiting = set(waits)
        for tenant, count in waits.items():
            self.held_by_tenant.labels(tenant).set(count)
        self.panic.set(dispatcher.panics)
        gone = self.shown - {backend.number for backend in dispatcher.backends}
        for gauge in self.backends:
            for number in gone:
                gauge.remove(str(number))
        self.shown = {backend.number for backend in dispatcher.backends}
        for gauge, value in self.backends.items():
            for backend in dispatcher.backends:
                gauge.labels(str(backend.number)).set(float(value(backend)))
        return generate_latest(self.registry)
