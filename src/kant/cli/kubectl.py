"""`kubectl kant`: questions to a live cluster, and orders. kubectl finds the program by its name, `kubectl-kant`,
on the path.

The leader answers whoever may ask it (`leader.py`). Else the state is built from the API server by the code that a
replica starts with; the core is asked and nothing is changed. Who may see their own pods alone is told what Kant has
written on them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from kant.cli.inputs import Json
from kant.cli.kubectl_orders import add_orders
from kant.cli.leader import LeaderWords
from kant.cli.live import SYSTEM, Live, stand
from kant.cli.own_pods import OwnPods

Namespace = Annotated[
    str, Parameter(name=["--namespace", "-n"], help="The namespace of the pod. Default: that of the context.")
]
OwnNamespace = Annotated[
    str, Parameter(name=["--namespace", "-n"], help="Whose pods are told of, to who may see no others.")
]
Kubeconfig = Annotated[Path | None, Parameter(help="A kubeconfig file. Default: KUBECONFIG, else ~/.kube/config.")]
Context = Annotated[str | None, Parameter(help="The context of the kubeconfig to use. Default: its current one.")]
ProfileName = Annotated[str, Parameter(help="A built-in profile or a TOML file. Default: that of the Kant there.")]
System = Annotated[str, Parameter(name="--system", help="The namespace in which Kant runs there.")]
Stand = Callable[[Path | None, str | None, str, str, bool], Live | LeaderWords | OwnPods]
"""Builds the state of a cluster, from a kubeconfig, a context, a profile by its name, and the namespace of Kant; and
whether it will be asked when jobs start."""


def kubectl_app(stand: Stand) -> App:
    """The verbs over `stand`."""
    app = App(name="kubectl kant", help="Ask Kant about a live cluster, and give orders.", help_format="plaintext")

    @app.command(name="why")
    def _why(
        pod: Annotated[str, Parameter(help="A pod, or a job.")],
        /,
        *,
        namespace: Namespace = "",
        kubeconfig: Kubeconfig = None,
        context: Context = None,
        profile: ProfileName = "",
        system: System = SYSTEM,
        json: Json = False,
    ) -> int:
        """Say why a pod waits: what blocks it, the facts behind that, what would free it, and when it may start."""
        return stand(kubeconfig, context, profile, system, True).why(namespace, pod).print(json)

    @app.command(name="eta")
    def _eta(
        pod: Annotated[str | None, Parameter(help="One pod alone. Default: all that wait.")] = None,
        /,
        *,
        namespace: Namespace = "",
        kubeconfig: Kubeconfig = None,
        context: Context = None,
        profile: ProfileName = "",
        system: System = SYSTEM,
        json: Json = False,
    ) -> int:
        """Print when each waiting job is expected to start."""
        return stand(kubeconfig, context, profile, system, True).eta(namespace, pod).print(json)

    @app.command(name="queue")
    def _queue(
        *,
        namespace: OwnNamespace = "",
        kubeconfig: Kubeconfig = None,
        context: Context = None,
        profile: ProfileName = "",
        system: System = SYSTEM,
        json: Json = False,
    ) -> int:
        """Print what each queue may use, uses, borrows and waits for."""
        return stand(kubeconfig, context, profile, system, False).queues(namespace).print(json)

    @app.command(name="top")
    def _top(
        *,
        namespace: OwnNamespace = "",
        kubeconfig: Kubeconfig = None,
        context: Context = None,
        profile: ProfileName = "",
        system: System = SYSTEM,
        json: Json = False,
    ) -> int:
        """Print what the pools hold, and the largest jobs that run."""
        return stand(kubeconfig, context, profile, system, False).top(namespace).print(json)

    add_orders(app)
    return app


def main(arguments: list[str] | None = None) -> None:
    """`kubectl-kant`."""
    import gc

    from kant.cli import app

    gc.disable()  # the process answers one question: to look for garbage takes a fifth of its time, and finds none

    app.main(arguments, kubectl_app(stand))
