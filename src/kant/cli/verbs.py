"""The verbs of `kant`, each with the module and the name of its function; only the called verb's module is loaded."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from cyclopts import App, CycloptsError

from kant import __version__
from kant.cli.app import UsageError
from kant.cli.distributions import missing
from kant.cli.other_words import answer

VERBS = {
    "up": "up:up",
    "down": "up:down",
    "join": "join:join",
    "leave": "join:leave",
    "submit": "submit:submit",
    "jobs": "jobs:jobs",
    "run": "run:run",
    "alloc": "run:alloc",
    "attach": "run:attach",
    "shell": "run:shell",
    "show": "details:show",
    "wait": "wait:wait",
    "history": "history:history",
    "bill": "bill:bill",
    "logs": "jobs:logs",
    "cancel": "jobs:cancel",
    "hold": "jobs:hold",
    "release": "jobs:release",
    "requeue": "jobs:requeue",
    "update": "jobs:update",
    "signal": "jobs:signal",
    "queue": "jobs:queue",
    "reserve": "reserve:reserve",
    "reservations": "reserve:reservations",
    "top": "jobs:top",
    "status": "status:status",
    "page": "page:page",
    "audit": "page:audit",
    "export": "move:export",
    "import": "move:import_",
    "simulate": "simulate:simulate",
    "compare": "compare:compare",
    "sweep": "sweep:sweep",
    "gate": "gate:gate",
    "replay": "replay:replay",
    "why": "why:why",
    "eta": "eta:eta",
    "whatif": "whatif:whatif",
    "explain": "explain:explain",
    "pack": "pack:pack_app",
    "defrag": "defrag:defrag_app",
    "share": "share:share_app",
    "report": "report:report",
    "check": "check:check_app",
    "demo": "demo:demo",
    "trace": "trace:trace_app",
    "cluster": "cluster:cluster_app",
    "policies": "policies:policies_app",
    "profiles": "profiles:profiles_app",
    "serve": "serve:serve_app",
    "plan": "plan:plan_app",
    "perf": "perf:perf_app",
    "kube": "kube:kube_app",
    "token": "token:token_app",
    "elastic": "elastic:elastic_app",
    "slurm-shims": "slurm_shims:slurm_shims",
    "ops": "ops:ops_app",
    "mcp": "mcp:mcp",
    "completion": "completion:completion",
    "man": "man:man",
}


def installed() -> list[str]:
    """Return the verbs of this installation."""
    gone = {verb for verbs in missing().values() for verb in verbs}
    return [verb for verb in VERBS if verb not in gone]


def app_of(*verbs: str) -> App:
    """Return the app of `kant` with these verbs."""
    app = App(
        name="kant",
        help="Kant: one scheduling core for AI clusters.",
        version=__version__,
        help_format="plaintext",
        suppress_keyboard_interrupt=False,  # `kant.cli.app` reports Ctrl-C itself
    )
    for verb in verbs:
        module, name = VERBS[verb].split(":")
        app.command(getattr(import_module(f"kant.cli.{module}"), name))
    return app


def call(arguments: list[str], app: App | None = None) -> Any:
    """Call the verb that the arguments name, of `app` or of `kant`; raises UsageError for invalid arguments."""
    if app is None:
        said = answer(arguments[0]) if arguments and arguments[0] not in VERBS else None
        if said is not None:
            raise UsageError(said)
        app = app_of(arguments[0]) if arguments and arguments[0] in VERBS else app_of(*installed())
    try:
        return app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        raise UsageError(" ".join(str(error).split()), *(error.command_chain or ())) from None
