"""`kant kube`: Kant as the scheduler of a Kubernetes cluster."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

if TYPE_CHECKING:
    from aiohttp import web

    from kant.kube.connect.config import Config
    from kant.kube.lead.driver import KubeDriver
    from kant.kube.serve.asked import Question
    from kant.kube.serve.questions import LeaderQuestions
    from kant.live.start_forecasts import StartForecasts
    from kant.ops.desk import Desk
    from kant.ops.view import WorldView
    from kant.service.whatif import WhatIfDesk

kube_app = App(name="kube", help="Kant as the scheduler of a Kubernetes cluster.")
kube_app.command("kant.cli.manifests:manifests")
kube_app.command("kant.cli.shadow:shadow")

Kubeconfig = Annotated[
    Path | None, Parameter(help="A kubeconfig file. Default: KUBECONFIG, else the pod's own account.")
]
Context = Annotated[str | None, Parameter(help="The context of the kubeconfig to use. Default: its current one.")]


@kube_app.command
def run(
    *,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    profile: Annotated[
        str, Parameter(help="A built-in profile or a TOML file; a file is read again when it changes.")
    ] = "kant",
    journal: Annotated[Path | None, Parameter(help="A folder for journals, which `kant replay` reads.")] = None,
    journal_limit: Annotated[
        int, Parameter(help="The largest total size of the journals in MiB; the oldest are removed.")
    ] = 3072,
    namespace: Annotated[str, Parameter(help="The namespace of the Lease.")] = "kant-system",
    scheduler_name: Annotated[str, Parameter(help="The schedulerName of the pods that Kant schedules.")] = "kant",
    shadow: Annotated[
        tuple[str, ...],
        Parameter(
            help="Decide and keep a journal for the GPU pods of these schedulers, and bind nothing.",
            consume_multiple=True,
        ),
    ] = (),
    leader_election: Annotated[bool, Parameter(help="Lead only while holding the Lease.")] = True,
    lease_duration: Annotated[
        float, Parameter(help="Seconds after which another replica may take over a Lease that is not renewed.")
    ] = 15.0,
    renew_deadline: Annotated[
        float, Parameter(help="Seconds after which a leader that cannot renew its Lease stops.")
    ] = 10.0,
    retry_period: Annotated[float, Parameter(help="Seconds between two attempts to get or renew the Lease.")] = 2.0,
    recovery: Annotated[
        float, Parameter(help="Seconds for which a new gang may be partially bound before it is withdrawn.")
    ] = 30.0,
    staleness: Annotated[
        float, Parameter(help="Seconds for which a gang that has lost pods may run with the others; 0: for ever.")
    ] = 60.0,
    listen: Annotated[
        str, Parameter(help="Where to serve probes and metrics, such as 0.0.0.0:8080. Default: nowhere.")
    ] = "",
    page: Annotated[
        bool | None, Parameter(help="Serve the page and `kant ops --kube` at the address of --listen. Default: yes.")
    ] = None,
    log_format: Annotated[str, Parameter(help="json or logfmt.")] = "json",
    log_level: Annotated[str, Parameter(help="debug, info, warning or error.")] = "info",
) -> int:
    """Schedule the pods of a cluster until stopped."""
    from kant.kube.lead.replica import ReplicaOptions, serve
    from kant.live.profile_file import read_profile
    from kant.model.errors import InputError
    from kant.service.forecaster import ForecastProcess
    from kant.service.solver_process import SolverProcess

    if journal_limit < 1:
        raise InputError("--journal-limit", "at least 1 MiB", journal_limit)
    if page and not listen:
        raise InputError("--page", "--listen ADDRESS as well, such as 0.0.0.0:8080")
    return serve(
        ReplicaOptions(
            profile=read_profile(profile, "--profile"),
            kubeconfig=kubeconfig,
            context=context,
            journal=journal,
            journal_bytes=journal_limit << 20,
            namespace=namespace,
            scheduler_name=scheduler_name,
            shadow=shadow,
            leader_election=leader_election,
            lease=(lease_duration, renew_deadline, retry_period),
            recovery=recovery,
            staleness=staleness,
            listen=listen,
            log_format=log_format,
            log_level=log_level,
            page=partial(_page, namespace, scheduler_name) if listen and page is not False else None,
            forecaster=ForecastProcess(),
            solver=SolverProcess(),
            answer=_answer,
            profile_file=path if (path := Path(profile)).is_file() else None,
        )
    )


def _page(
    system: str, scheduler_name: str, questions: LeaderQuestions, config: Config, ticket: str
) -> list[web.RouteDef]:
    """Return the routes of the web page. The leader loads the modules on the first request."""
    from kant.kube.serve.page import PageContent, routes
    from kant.kube.user.page_orders import PageOrders
    from kant.service.page import routes as files

    orders = partial(PageOrders, scheduler_name=scheduler_name, desk=partial(_desk, system))
    content = PageContent(
        tuple(files("Kubernetes")), partial(_reply, 0), _profiles(), orders, _view, partial(_reply, 1)
    )
    return routes(questions, content, config, ticket)


def _view(questions: LeaderQuestions) -> WorldView:
    """Return the view of the state for operations; loaded on the first request, as in `_page`."""
    from kant.ops.state_view import leader_view

    return leader_view(questions)


@cache
def _desks() -> tuple[WhatIfDesk, WhatIfDesk]:
    """Return the desk for what-ifs and the desk for questions about the past; each answers one question at a time. They
    are loaded on the first request, as in `_page`.
    """
    from kant.ops.past_question import PROCESS, PastQuestion
    from kant.service.whatif import WhatIfDesk

    return WhatIfDesk(at_once=1), WhatIfDesk(at_once=1, process=PROCESS, form=PastQuestion)


async def _reply(desk: int, journal: str, now_us: int, asked: bytes, gone: Callable[[], bool]) -> tuple[int, bytes]:
    """Answer a what-if (`desk` 0) or a question about the past (1), as a `WhatIf` of `kant.kube.serve.page`."""
    return await _desks()[desk].reply(journal, now_us, asked, gone)


async def _answer(driver: KubeDriver, forecasts: StartForecasts, question: Question) -> bytes:
    """Answer a question of `kubectl kant`; the modules are loaded on the first request, as in `_page`."""
    from kant.cli.live import answer

    return await answer(driver, forecasts, question)


def _desk(system: str, config: Config) -> Desk:
    """Return the desk that plans and applies orders for a caller of the web page."""
    from kant.ops.desk import Desk
    from kant.ops.kube_audit import KubeAudit
    from kant.ops.kubernetes import KubeWorld

    world = KubeWorld(config, system)
    return Desk(world, world.caller(), KubeAudit(world), via="page")


def _profiles() -> dict[str, list[dict[str, str]]]:
    from kant.scheduler.profile import builtin_abouts

    return {"profiles": [{"name": name, "about": about} for name, about in builtin_abouts().items()]}
