"""The Grafana dashboard: a panel for each metric that Kant serves, made of the metrics' own names, words and labels."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from kant.cluster.state import ClusterState
from kant.kube.serve.metrics import KubeTelemetry
from kant.model.node import ClusterSpec, Node

WIDTH, HEIGHT = 12, 8
WINDOW = "$__rate_interval"
UNITS = {"seconds": "s", "ratio": "percentunit", "gar": "percentunit", "sor": "percentunit", "gfr": "percentunit"}
"""Grafana's unit by the last word of a metric's name; others are plain numbers."""


class Known(NamedTuple):
    """A metric: its name as Prometheus has it, `counter`, `gauge` or `histogram`, what it says, and its labels."""

    name: str
    kind: str
    words: str
    labels: tuple[str, ...]


def known_metrics() -> list[Known]:
    """Every metric of a replica that leads, in the order in which it serves them, but for those of the process."""
    telemetry = KubeTelemetry()
    telemetry.staleness = {"pods": lambda: 0.0}
    state = ClusterState(ClusterSpec("one", (Node("n", 1),)))
    telemetry.stand = lambda: (state, 0)
    labels = {each._name: tuple(each._labelnames) for each in telemetry.counters_in_use}
    found = []
    for metric in telemetry.registry.collect():
        if not metric.name.startswith("process_"):
            own = labels.get(metric.name) or tuple(getattr(metric, "_labelnames", ()))
            name = f"{metric.name}_total" if metric.type == "counter" else metric.name
            found.append(Known(name, metric.type, metric.documentation, own))
    return found


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana's JSON (schema 39); it asks whichever Prometheus is chosen above it."""
    panels = []
    for number, metric in enumerate(known_metrics()):
        place = {"h": HEIGHT, "w": WIDTH, "x": WIDTH * (number % 2), "y": HEIGHT * (number // 2)}
        targets = [
            {"refId": "ABC"[at], "expr": expression, "legendFormat": legend}
            for at, (expression, legend) in enumerate(_queries(metric))
        ]
        last = metric.name.removesuffix("_total").rpartition("_")[2]
        unit = UNITS.get(last, "short") if metric.kind != "counter" else "short"
        panels.append(
            {
                "id": number + 1,
                "type": "timeseries",
                "title": metric.name,
                "description": metric.words,
                "datasource": {"type": "prometheus", "uid": "$datasource"},
                "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
                "gridPos": place,
                "targets": targets,
            }
        )
    source = {"type": "datasource", "name": "datasource", "label": "Prometheus", "query": "prometheus"}
    return {
        "uid": "kant",
        "title": "Kant",
        "tags": ["kant"],
        "schemaVersion": 39,
        "time": {"from": "now-6h", "to": "now"},
        "refresh": "1m",
        "templating": {"list": [source]},
        "panels": panels,
    }


def _queries(metric: Known) -> Iterator[tuple[str, str]]:
    """What a panel asks, with the legend of each line."""
    by, legend = ", ".join(metric.labels), " ".join(f"{{{{{label}}}}}" for label in metric.labels)
    if metric.kind == "histogram":
        grouped = ", ".join(("le", *metric.labels))
        for p in (0.5, 0.9, 0.99):
            rates = f"sum by ({grouped}) (rate({metric.name}_bucket[{WINDOW}]))"
            yield f"histogram_quantile({p}, {rates})", f"P{p * 100:.0f} {legend}".strip()
    elif metric.kind == "counter":
        inner = f"rate({metric.name}[{WINDOW}])"
        yield (f"sum by ({by}) ({inner})" if by else f"sum({inner})"), legend or "a second"
    else:
        yield (f"max by ({by}) ({metric.name})" if by else f"max({metric.name})"), legend or metric.name


def config_map() -> str:
    """The dashboard in a ConfigMap with the label by which Grafana's sidecar finds it, as YAML."""
    body = json.dumps(dashboard(), indent=1)
    indented = "\n".join(f"    {line}" for line in body.split("\n"))
    return f"""\
# For Grafana's sidecar of dashboards. Made from the metrics' own list by deploy/helm/make.py.
apiVersion: v1
kind: ConfigMap
metadata:
  name: kant-dashboard
  namespace: ${{namespace}}
  labels:
    app.kubernetes.io/name: kant
    grafana_dashboard: "1"
data:
  kant.json: |
{indented}
"""
