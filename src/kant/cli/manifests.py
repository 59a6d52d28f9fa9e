"""`kant kube manifests`: the manifests to apply to a cluster so that Kant runs there."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter

from kant.cli.inputs import load_profile


def manifests(
    *,
    namespace: Annotated[str, Parameter(help="The namespace of Kant.")] = "kant-system",
    image: Annotated[str | None, Parameter(help="The container image. Default: that of this version.")] = None,
    replicas: Annotated[int, Parameter(help="The number of replicas; one of them leads.")] = 2,
    profile: Annotated[str, Parameter(help="A built-in profile, or a TOML file.")] = "kant",
    gates: Annotated[bool, Parameter(help="Add the scheduling gate of quotas to pods for Kant.", negative="")] = False,
    hami: Annotated[bool, Parameter(help="Let Kant allocate parts of GPUs with HAMi.", negative="")] = False,
    network_policy: Annotated[bool, Parameter(help="Block access to the other ports of Kant.", negative="")] = False,
    service_monitor: Annotated[bool, Parameter(help="Add a ServiceMonitor for Prometheus.", negative="")] = False,
    prometheus_rule: Annotated[bool, Parameter(help="Add alerts for Prometheus.", negative="")] = False,
    dashboard: Annotated[bool, Parameter(help="Add a dashboard for Grafana.", negative="")] = False,
) -> None:
    """Print all that Kant needs in a cluster, as YAML for `kubectl apply -f -`."""
    from kant.kube.manifests import IMAGE, ManifestSettings, render

    settings = ManifestSettings(
        namespace=namespace,
        image=image or IMAGE,
        replicas=replicas,
        profile=load_profile(profile).text,
        gates=gates,
        hami=hami,
        network_policy=network_policy,
        service_monitor=service_monitor,
        prometheus_rule=prometheus_rule,
        dashboard=dashboard,
    )
    sys.stdout.write(render(settings))
