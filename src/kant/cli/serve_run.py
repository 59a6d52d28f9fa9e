"""`kant serve run`: services with objectives, on this machine or on Kubernetes."""

from __future__ import annotations

import signal
import time
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from kant.cli.inputs import Home, Json, whole
from kant.cli.kube_options import Kube
from kant.cli.output import print_json
from kant.cli.show import print_table
from kant.model.errors import InputError
from kant.service.client import ServiceClient, home_of

if TYPE_CHECKING:
    from kant.service.follow_services import ReplicaPlace
    from kant.serving.live_services import LiveService

HERE = Kube()


def run(
    services: Annotated[Path, Parameter(help="A TOML file of services (docs/serving.md).")],
    /,
    *,
    plan: Annotated[
        int | None,
        Parameter(help="Only print the planned replicas of each service for this number of hours.", converter=whole),
    ] = None,
    home: Home = None,
    kube: Kube = HERE,
    log_format: Annotated[str, Parameter(help="json or logfmt.")] = "logfmt",
    json: Json = False,
) -> None:
    """Keep as many replicas of services as their forecasts and objectives require, until stopped."""
    from kant.service.follow_services import ServiceFollower, alone, follow
    from kant.service.follow_services import plan as ahead
    from kant.serving.live_services import read_live_services

    if plan is not None and not 1 <= plan <= 168:
        raise InputError("--plan", "1 to 168 hours", plan)
    if json and plan is None:
        raise InputError("--json", "--plan as well")
    kept = home_of(home) / "services"
    found = read_live_services(services, time.time(), kept)
    if plan is not None:
        rows = ahead(found, time.time(), plan)
        print_json({"services": rows}) if json else _show(rows)
        return
    from kant.live.logs import set_up

    set_up(log_format)
    with alone(kept, [service.name for service in found]):
        followers = [ServiceFollower(service, _place(service, services.parent, home, kube)) for service in found]
        follow(followers, _stop_signal())


def _place(service: LiveService, folder: Path, home: Path | None, kube: Kube) -> ReplicaPlace:
    """Return what scales a service, on this machine or on Kubernetes. Raises InputError if it cannot be scaled."""
    if not kube:
        from kant.service.replicas import LocalReplicas

        return LocalReplicas(service, ServiceClient(home_of(home)), folder)
    from kant.kube.connect.config import load
    from kant.kube.user.scale import ScaledWorkload, scale_path
    from kant.service.follow_services import ScaledReplicas

    there, where = service.table.kubernetes, f"service {service.name}: kubernetes"
    if there is None:
        raise InputError(where, "a table [service.kubernetes] with the workload of its bursts")
    path = scale_path(there.bursts, kube.namespace or there.namespace, f"{where}.bursts")
    found = ScaledReplicas(service, ScaledWorkload(load(kube.kubeconfig, kube.context), path, f"{where}.bursts"))
    found.count()  # report errors at once
    return found


def _stop_signal() -> Any:
    """Return an event that SIGTERM and SIGINT set."""
    stop = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


def _show(rows: list[dict[str, Any]]) -> None:
    """Print replicas by hour, one column per service."""
    lines = []
    for hour in range(len(rows[0]["hours"])):
        begin = datetime.fromtimestamp(rows[0]["hours"][hour]["from_s"], UTC)
        cells = [f"{begin:%a %H:%M}"]
        for row in rows:
            rate = row["hours"][hour].get("requests_per_s")
            cells += [str(row["hours"][hour]["replicas"]), f"{rate:,.1f}" if rate is not None else "-"]
        lines.append(cells)
    columns = ["from, UTC", *(name for row in rows for name in (row["service"], "requests/s"))]
    print_table(columns, lines, "replicas to have")
