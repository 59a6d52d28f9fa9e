"""`kubectl kant`: questions and orders to a live cluster. kubectl finds this program on the PATH as `kubectl-kant`.

The leader answers users who may ask it (`leader.py`). For others, the state is built from the API server by the code of
a starting replica. The core answers from this state, and nothing is changed. Users who may see only their own pods get
what Kant has written on these pods.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from kant.cli.inputs import Json
from kant.cli.kube_options import SYSTEM, Context, Kubeconfig, Namespace
from kant.cli.leader import ClusterAnswers, cluster_answers
from kant.cli.output import Reply
from kant.model.errors import InputError

if TYPE_CHECKING:
    from kant.kube.user.orders import Orders

Targets = Annotated[str, Parameter(help="Jobs or pods, each with its gang, or queue/NAME.")]


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Access:
    """Which cluster to ask, and how to print the answer."""

    kubeconfig: Kubeconfig = None
    context: Context = None
    json: Json = False


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Inside(Access):
    """Which namespace of which cluster is meant."""

    namespace: Namespace = ""


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class QuestionOptions(Inside):
    """The options of a question."""

    profile: Annotated[str, Parameter(help="A built-in profile or a TOML file. Default: that of Kant there.")] = ""
    system: Annotated[str, Parameter(name="--system", help="The namespace in which Kant itself runs.")] = SYSTEM


ACCESS, INSIDE, ASKED = Access(), Inside(), QuestionOptions()


def add_orders(app: App) -> None:
    """Add the verbs that change the cluster."""

    @app.command(name="hold")
    def _hold(*targets: Targets, inside: Inside = INSIDE) -> int:
        """Keep waiting pods or jobs from starting."""
        return _give(targets, lambda orders, one: orders.hold(one), inside, inside.namespace)

    @app.command(name="release")
    def _release(
        *targets: Annotated[str, Parameter(help="Jobs or pods, queue/NAME, or node/NAME that was drained.")],
        inside: Inside = INSIDE,
    ) -> int:
        """Release held jobs, open a queue, or return a drained node to service."""
        return _give(targets, lambda orders, one: orders.release(one), inside, inside.namespace)

    @app.command(name="priority")
    def _priority(
        priority: Annotated[str, Parameter(help="A whole number; `class`: that of the PriorityClass.")],
        *targets: Annotated[str, Parameter(help="Jobs or pods, each with its gang.")],
        inside: Inside = INSIDE,
    ) -> int:
        """Give waiting pods or jobs another priority. Only users who may change queues may exceed the priority of the
        class.
        """
        said = _number(priority)
        return _give(targets, lambda orders, one: orders.rank(one, said), inside, inside.namespace)

    @app.command(name="drain")
    def _drain(
        *targets: Annotated[str, Parameter(help="queue/NAME, which admits no new jobs, or node/NAME, which is freed.")],
        lasts: Annotated[
            str, Parameter(name="--for", help="Release a node after this time, such as 2h. Default: by `release`.")
        ] = "",
        reason: Annotated[str, Parameter(help="The taint of the node.")] = "",
        access: Access = ACCESS,
    ) -> int:
        """Let a queue finish its jobs; or drain a node: its jobs are evicted gang by gang, and wait again."""
        return _give(targets, lambda orders, one: orders.drain(one, lasts, reason), access, "")


def _number(text: str) -> int | None:
    if text == "class":
        return None
    try:
        return int(text)
    except ValueError:
        raise InputError("PRIORITY", "a whole number, or `class`", text) from None


def _give(
    targets: tuple[str, ...], order: Callable[[Orders, str], Awaitable[bool]], access: Access, namespace: str
) -> int:
    """Give an order for each target; the first refused order ends the command."""
    import asyncio

    if not targets:
        raise InputError("TARGETS", "at least one")
    from kant.kube.connect.client import ApiClient
    from kant.kube.connect.config import load
    from kant.kube.user.orders import Orders

    async def whole() -> list[str]:
        async with ApiClient(load(access.kubeconfig, access.context), concurrency=16, timeout=30.0) as client:
            orders = Orders(client, namespace)
            return [one for one in targets if await order(orders, one)]

    done = asyncio.run(whole())
    return Reply({"changed": done}, lambda: print("\n".join(done) or "nothing to change")).print(access.json)


FindAnswers = Callable[[Path | None, str | None, str, str, bool], ClusterAnswers]
"""Builds the state of a cluster from a kubeconfig, a context, a profile name, and Kant's namespace; the last argument
says whether start forecasts will be needed."""


def kubectl_app(find_answers: FindAnswers) -> App:
    """Return the app of `kubectl kant`, whose verbs get the state from `find_answers`."""
    app = App(name="kubectl kant", help="Query Kant about a live cluster, and change it.", help_format="plaintext")

    def at(asked: QuestionOptions, futures: bool) -> ClusterAnswers:
        return find_answers(asked.kubeconfig, asked.context, asked.profile, asked.system, futures)

    @app.command(name="why")
    def _why(pod: Annotated[str, Parameter(help="A pod, or a job.")], /, *, asked: QuestionOptions = ASKED) -> int:
        """Print why a pod waits: what blocks it, the facts behind this, what would help, and when it may start."""
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
        """Print each queue's quota, its use, what it borrows and its waiting jobs."""
        return at(asked, False).queues(asked.namespace).print(asked.json)

    @app.command(name="top")
    def _top(*, asked: QuestionOptions = ASKED) -> int:
        """Print the capacity of the pools, and the largest running jobs."""
        return at(asked, False).top(asked.namespace).print(asked.json)

    add_orders(app)
    return app


def main(arguments: list[str] | None = None) -> None:
    """Run `kubectl-kant`, and exit with its code."""
    import gc

    from kant.cli import app

    gc.disable()  # the process gives one answer: garbage collection takes a fifth of its time, and finds none

    app.main(arguments, kubectl_app(cluster_answers))
