"""The router's Prometheus metrics. Labels are backends and tenants of the file: never free text."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from kant.gateway.backend import Placement
from kant.gateway.dispatch import Dispatcher

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)


class Meters:
    """The metrics of one router."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self.arrivals = Counter("kant_router_arrivals", "Requests that have come to be routed.", registry=registry)
        self.requests = Counter(
            "kant_router_requests", "Ended requests, by backend and status.", ["backend", "status"],
            registry=registry,
        )  # fmt: skip
        self.refused = Counter(
            "kant_router_refused", "Requests that reached no backend, by status.", ["status"], registry=registry
        )
        self.limited = Counter(
            "kant_router_tenant_limited", "Requests over a tenant's limits.", ["tenant"], registry=registry
        )
        self.retried = Counter(
            "kant_router_retries", "Requests sent again, as a backend was away, refused or closed.", ["backend"],
            registry=registry,
        )  # fmt: skip
        self.over_budget = Counter(
            "kant_router_retries_over_budget", "Requests not sent again, as too many were being so.", registry=registry
        )
        self.timed_out = Counter(
            "kant_router_timeouts", "Requests whose backend took too long, by whether it had begun its answer.",
            ["backend", "begun"], registry=registry,
        )  # fmt: skip
        self.ejections = Counter(
            "kant_router_ejections", "Times that a backend was ejected for its answers.", ["backend"],
            registry=registry,
        )  # fmt: skip
        self.lost = Counter(
            "kant_router_lost", "Answers that had begun and were cut short by their backend.", ["backend"],
            registry=registry,
        )  # fmt: skip
        self.gone = Counter("kant_router_clients_gone", "Requests whose client went away.", registry=registry)
        self.tokens = Counter(
            "kant_router_output_tokens", "Tokens of outputs, as counted from streams.", ["backend"], registry=registry
        )
        self.prompt = Counter("kant_router_prompt_tokens", "Tokens of prompts, as estimated.", registry=registry)
        self.usage = Counter(
            "kant_router_tenant_tokens", "Tokens that tenants have had, by model and kind: prompt or output.",
            ["tenant", "model", "kind"], registry=registry,
        )  # fmt: skip
        self.shed = Counter(
            "kant_router_shed", "Requests refused as too many waited, by tenant.", ["tenant"], registry=registry
        )
        self.shadow = Counter(
            "kant_router_shadow", "Requests by what --shadow would have done: the same, another backend, or hold them.",
            ["decision"], registry=registry,
        )  # fmt: skip
        self.shadow_s = Counter(
            "kant_router_shadow_first_token_seconds",
            "By how much first tokens would have come later, or earlier, where --shadow would have sent requests.",
            ["than"], registry=registry,
        )  # fmt: skip
        self.held_s = Histogram(
            "kant_router_held_seconds", "How long requests were held.", buckets=SECONDS, registry=registry
        )
        self.first_s = Histogram(
            "kant_router_first_token_seconds", "From the request to the first piece of its answer.", buckets=SECONDS,
            registry=registry,
        )  # fmt: skip
        self.whole_s = Histogram(
            "kant_router_request_seconds", "From the request to the end of its answer.", buckets=SECONDS,
            registry=registry,
        )  # fmt: skip
        self.held = Gauge("kant_router_held", "Requests that are held now.", registry=registry)
        self.held_by_tenant = Gauge(
            "kant_router_tenant_held", "Requests that are held now, by tenant.", ["tenant"], registry=registry
        )
        self.waiting: set[str] = set()
        self.panic = Gauge(
            "kant_router_panic", "1 where every open backend is ejected, so that all are used.", registry=registry
        )
        self.shown: set[int] = set()
        by_backend = {
            "in_flight": "Requests on a backend.",
            "tokens": "Tokens that these have, as tracked.",
            "up": "1 where a backend answers.",
            "ejected": "1 where a backend gets no new requests, as its answers fail.",
            "draining": "1 where a backend gets no further requests.",
            "other_requests": "Requests that a backend says to have from others.",
            "engine_running": "Requests that run, as the engine says.",
            "engine_waiting": "Requests that wait, as the engine says.",
            "engine_kv_usage": "Share of the KV in use, as the engine says.",
        }
        self.backends = {
            name: Gauge(f"kant_router_backend_{name}", about, ["backend"], registry=registry)
            for name, about in by_backend.items()
        }

    def opinion(self, placed: Placement) -> None:
        """Count what a shadow has said of a request, if there is one."""
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
        for gauge in self.backends.values():
            for number in gone:
                gauge.remove(str(number))
        self.shown = {backend.number for backend in dispatcher.backends}
        for backend in dispatcher.backends:
            values = {
                "in_flight": len(backend.rows),
                "tokens": backend.site.tokens(),
                "up": backend.up,
                "ejected": backend.health.ejected,
                "draining": backend.draining or backend.leaving,
                "other_requests": backend.site.other_requests,
                "engine_running": backend.scraped.running,
                "engine_waiting": backend.scraped.waiting,
                "engine_kv_usage": backend.scraped.usage,
            }
            for name, value in values.items():
                self.backends[name].labels(str(backend.number)).set(float(value))
        return generate_latest(self.registry)
