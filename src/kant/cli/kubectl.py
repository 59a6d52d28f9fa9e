"""`kubectl kant`: questions and orders to a live cluster. kubectl finds it on the path by its name, `kubectl-kant`.

The leader answers users who may ask it (`leader.py`). Otherwise the state is built from the API server by a replica's
start code; the core is asked and nothing is changed. Users who may see only their own pods get what Kant has written on
them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from kant.cli.inputs import Json
from kant.cli.kubectl_orders import Access, add_orders
from kant.cli.leader import LeaderWords
from kant.cli.live import SYSTEM, Live, stand
from kant.cli.own_pods import OwnPods

Namespace = Annotated[
    str, Parameter(name=["--namespace", "-n"], help="The namespace of the pod. Default: that of the context.")
]
OwnNamespace = Annotated[
    str,
    Parameter(name=["--namespace", "-n"], help="The namespace whose pods are shown to users who may see no others."),
]


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Cluster(Access):
    """With what a question needs."""

    profile: Annotated[str, Parameter(help="A built-in profile or a TOML file. Default: that of the Kant there.")] = ""
    system: Annotated[str, Parameter(name="--system", help="The namespace in which Kant runs there.")] = SYSTEM


CLUSTER = Cluster()
Stand = Callable[[Path | None, str | None, str, str, bool], Live | LeaderWords | OwnPods]
"""Builds the state of a cluster from a kubeconfig, a context, a profile name, and Kant's namespace; the last argument
says whether start forecasts will be needed."""


def kubectl_app(stand: Stand) -> App:
    """Return the app with the verbs over `stand`."""
    app = App(name="kubectl kant", help="Query Kant about a live cluster, and change it.", help_format="plaintext")

    def at(cluster: Cluster, futures: bool) -> Live | LeaderWords | OwnPods:
        return stand(cluster.kubeconfig, cluster.context, cluster.profile, cluster.system, futures)

    @app.command(name="why")
    def _why(
        pod: Annotated[str, Parameter(help="A pod, or a job.")],
        /,
        *,
        namespace: Namespace = "",
        cluster: Cluster = CLUSTER,
        json: Json = False,
    ) -> int:
        """Say why a pod waits: what blocks it, the facts behind that, what would free it, and when it may start."""
        return at(cluster, True).why(namespace, pod).print(json)

    @app.command(name="eta")
    def _eta(
        pod: Annotated[str | None, Parameter(help="Only this pod. Default: all waiting pods.")] = None,
        /,
        *,
        namespace: Namespace = "",
        cluster: Cluster = CLUSTER,
        json: Json = False,
    ) -> int:
        """Print when each waiting job is expected to start."""
        return at(cluster, True).eta(namespace, pod).print(json)

    @app.command(name="queue")
    def _queue(
        *,
        namespace: OwnNamespace = "",
        cluster: Cluster = CLUSTER,
        json: Json = False,
    ) -> int:
        """Print what each queue may use, uses, borrows and waits for."""
        return at(cluster, False).queues(namespace).print(json)

    @app.command(name="top")
    def _top(
        *,
        namespace: OwnNamespace = "",
        cluster: Cluster = CLUSTER,
        json: Json = False,
    ) -> int:
        """Print what the pools hold, and the largest jobs that run."""
        return at(cluster, False).top(namespace).print(json)

    add_orders(app)
    return app


def main(arguments: list[str] | None = None) -> None:
    """`kubectl-kant`."""
    import gc

    from kant.cli import app

    gc.disable()  # one answer per process: collecting garbage takes a fifth of its time, and finds none

    app.main(arguments, kubectl_app(stand))
