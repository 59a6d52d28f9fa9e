"""`kubectl kant`: questions and orders to a live cluster. kubectl finds it on the path by its name, `kubectl-kant`.

The leader answers users who may ask it (`leader.py`). Otherwise the state is built from the API server by a replica's
start code; the core is asked and nothing is changed. Users who may see only their own pods get what Kant has written on
them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from kant.cli.kubectl_orders import ASKED, QuestionOptions, add_orders
from kant.cli.leader import LeaderWords
from kant.cli.live import LiveCluster, stand
from kant.cli.own_pods import OwnPods

Stand = Callable[[Path | None, str | None, str, str, bool], LiveCluster | LeaderWords | OwnPods]
"""Builds the state of a cluster from a kubeconfig, a context, a profile name, and Kant's namespace; the last argument
says whether start forecasts will be needed."""


def kubectl_app(stand: Stand) -> App:
    """Return the app with the verbs over `stand`."""
    app = App(name="kubectl kant", help="Query Kant about a live cluster, and change it.", help_format="plaintext")

    def at(asked: QuestionOptions, futures: bool) -> LiveCluster | LeaderWords | OwnPods:
        return stand(asked.kubeconfig, asked.context, asked.profile, asked.system, futures)

    @app.command(name="why")
    def _why(pod: Annotated[str, Parameter(help="A pod, or a job.")], /, *, asked: QuestionOptions = ASKED) -> int:
        """Say why a pod waits: what blocks it, the facts behind that, what would free it, and when it may start."""
        return at(asked, True).why(asked.namespace, pod).print(asked.json)

    @app.command(name="eta")
    def _eta(
        pod: Annotated[str | None, Parameter(help="Only this pod. Default: all waiting pods.")] = None,
        /,
        *,
        asked: QuestionOptions = ASKED,
    ) -> int:
        """Print when each waiting job is expected to start."""
        return at(asked, True).eta(asked.namespace, pod).print(asked.json)

    @app.command(name="queue")
    def _queue(*, asked: QuestionOptions = ASKED) -> int:
        """Print what each queue may use, uses, borrows and waits for."""
        return at(asked, False).queues(asked.namespace).print(asked.json)

    @app.command(name="top")
    def _top(*, asked: QuestionOptions = ASKED) -> int:
        """Print what the pools hold, and the largest jobs that run."""
        return at(asked, False).top(asked.namespace).print(asked.json)

    add_orders(app)
    return app


def main(arguments: list[str] | None = None) -> None:
    """`kubectl-kant`."""
    import gc

    from kant.cli import app

    gc.disable()  # one answer per process: collecting garbage takes a fifth of its time, and finds none

    app.main(arguments, kubectl_app(stand))
