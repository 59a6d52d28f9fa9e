"""`kant serve`: simulates inference engines request by request."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from kant.cli.inputs import Json, Seed, check_out, whole
from kant.cli.output import Reply
from kant.cli.serve_capacity import capacity, removal
from kant.cli.serve_engine import EngineOptions, engine_about, engine_settings, speculation_of
from kant.cli.serve_fit import fit
from kant.cli.serve_replay import gate, whatif
from kant.cli.serve_route import mock, pick, route
from kant.cli.serve_run import run
from kant.cli.serve_show import show_policies, show_served
from kant.cli.show import console, print_table
from kant.model.errors import InputError

if TYPE_CHECKING:
    from kant.serving.engine import EngineSettings
    from kant.serving.requests import Requests
    from kant.serving.summary import Served

serve_app = App(
    name="serve",
    help="Inference engines, request by request: simulate them, or route to real ones.",
    help_format="plaintext",
)
for verb in (capacity, removal, fit, run, route, pick, mock, whatif, gate):
    serve_app.command(verb)

RequestsFile = Annotated[Path, Parameter(help="Requests: plain or gzip.")]
RequestFormat = Annotated[
    str | None, Parameter("--format", help="azure, mooncake, burstgpt, servegen or csv; detected if not given.")
]
ServeOut = Annotated[Path | None, Parameter(help="Folder for the summary, the requests, the series and the report.")]


@Parameter(name="*")
@dataclass(frozen=True)
class ServeSetup(EngineOptions):
    """The engines, their requests, and their objectives."""

    engines: Annotated[int, Parameter(help="The number of engines.", converter=whole)] = 4
    rate: Annotated[float | None, Parameter(help="Stretch the arrivals to this number of requests a second.")] = None
    requests: Annotated[
        int | None, Parameter(help="Use only this number of requests, from the first.", converter=whole)
    ] = None
    ttft: Annotated[float, Parameter(help="Objective: seconds to the first token.")] = 2.0
    tpot: Annotated[float, Parameter(help="Objective: seconds for each token after it.")] = 0.1


DEFAULT = ServeSetup()


@serve_app.command
def simulate(
    requests: RequestsFile,
    /,
    *,
    format: RequestFormat = None,
    policy: Annotated[
        str, Parameter(help="The policy that orders requests on an engine (see `kant serve policies`).")
    ] = "fcfs",
    router: Annotated[str, Parameter(help="The router, which chooses the engine of a request.")] = "least-tokens",
    setup: ServeSetup = DEFAULT,
    seed: Seed = 0,
    out: ServeOut = None,
    json: Json = False,
) -> int:
    """Serve the requests of a file with some engines, and print their latencies and throughput."""
    check_out(out)
    settings, coming, about = _prepared(requests, format, setup, seed)
    summary, served = _run(coming, settings, setup, policy, router, seed)
    summary = {**about, **summary}
    if out is not None:
        from kant.serving.bundle import write_bundle

        write_bundle(out, [summary], [served])
    return Reply(summary, lambda: show_served([summary])).print(json)


@serve_app.command
def compare(
    requests: RequestsFile,
    /,
    *,
    format: RequestFormat = None,
    policy: Annotated[
        list[str] | None, Parameter(help="A policy; repeat for each. Default: fcfs.", negative="")
    ] = None,
    router: Annotated[
        list[str] | None, Parameter(help="A router; repeat for each. Default: least-tokens.", negative="")
    ] = None,
    setup: ServeSetup = DEFAULT,
    seed: Seed = 0,
    out: ServeOut = None,
    json: Json = False,
) -> int:
    """Serve the same requests under each of the policies and routers, side by side."""
    check_out(out)
    pairs = [(p, r) for p in policy or ["fcfs"] for r in router or ["least-tokens"]]
    if len(pairs) < 2 or len(set(pairs)) < len(pairs):
        raise InputError("--policy and --router", "at least two different combinations", len(set(pairs)))
    _known(pairs)
    settings, coming, about = _prepared(requests, format, setup, seed)
    runs = [_run(coming, settings, setup, p, r, seed) for p, r in pairs]
    summaries = [{**about, **summary} for summary, _ in runs]
    if out is not None:
        from kant.serving.bundle import write_bundle

        write_bundle(out, summaries, [served for _, served in runs])
    return Reply({"runs": summaries}, lambda: show_served(summaries)).print(json)


@serve_app.command
def generate(
    kind: Annotated[str, Parameter(help="conversation, sharegpt, decode-heavy, balanced or prefill-heavy.")],
    /,
    *,
    out: Annotated[Path, Parameter(help="The CSV file to write.")],
    requests: Annotated[int, Parameter(help="The number of requests.", converter=whole)] = 1000,
    rate: Annotated[float, Parameter(help="Requests a second.")] = 4.0,
    burstiness: Annotated[
        float, Parameter(help="The coefficient of variation of the times between arrivals; 1: a Poisson process.")
    ] = 1.0,
    groups: Annotated[int, Parameter(help="Groups of requests with a common prefix.", converter=whole)] = 0,
    prefix: Annotated[int, Parameter(help="Tokens of that prefix.", converter=whole)] = 0,
    seed: Seed = 0,
) -> None:
    """Draw requests from published statistics, and write them as Kant's own table."""
    from kant.serving.generate import generate as draw
    from kant.serving.read import write_requests

    write_requests(draw(kind, requests, rate, seed, burstiness, groups, prefix), out)
    console.print(f"{requests:,} requests written to {out}", soft_wrap=True)


@serve_app.command
def train(
    pairs: Annotated[Path, Parameter(help='Lines of JSON: {"prompt": text, "output": tokens}; plain or gzip.')],
    /,
    *,
    out: Annotated[Path, Parameter(help="The model to write, such as ranker.npz.")],
    seed: Seed = 0,
    json: Json = False,
) -> int:
    """Train a ranker of prompts by the length of their answers, and test it on prompts that it has not seen."""
    from kant.serving.predictor import HELD_OUT, read_pairs
    from kant.serving.predictor import train as learn

    known = read_pairs(pairs)
    model, tau = learn(known, seed)
    model.save(out)
    found = {"pairs": len(known), "held_out": max(int(HELD_OUT * len(known)), 8), "kendall_tau": tau}
    said = f"Kendall's tau {tau:.2f} on a tenth of {len(known):,} pairs; written to {out}"
    return Reply(found, lambda: console.print(said, soft_wrap=True)).print(json)


@serve_app.command
def policies(*, json: Json = False) -> int:
    """List the policies, the routers, and the models that have a latency."""
    from kant.serving.latency import about as latency_about
    from kant.serving.latency import combinations, kv_tokens
    from kant.serving.policies import POLICIES
    from kant.serving.routers import ROUTERS

    found: dict[str, list[dict[str, Any]]] = {
        "policies": [{"policy": name, "about": _about(kind)} for name, kind in POLICIES.items()],
        "routers": [{"router": name, "about": _about(kind)} for name, kind in ROUTERS.items()],
        "models": [
            {"model": model, "gpu": gpu, "tensor_parallel": degree, "kv_tokens": kv_tokens(model, gpu, degree)}
            | {"latency": latency_about((model, gpu, degree))}
            for model, gpu, degree in combinations()
        ],
    }
    return Reply(found, lambda: show_policies(found)).print(json)


@serve_app.command
def verify(
    file: Annotated[Path, Parameter(help="Recorded runs of vLLM's scheduler: JSON, plain or gzip.")],
    /,
    *,
    json: Json = False,
) -> int:
    """Replay recorded runs of vLLM's own scheduler on the engine, and count the results that agree exactly."""
    from kant.serving.recording import read_recording, verify

    found = verify(read_recording(file))

    def show() -> None:
        columns = ["mode", "runs", "exact", "requests", "exact", "preemptions", "steps"]
        rows = [[mode, *(f"{count:,}" for count in counts.json().values())] for mode, counts in found.modes.items()]
        print_table(columns, rows, left=columns[:1])
        console.print(f"{found.exact:,} of {found.requests:,} requests exact")
        if (odd := found.first_difference) is not None:
            console.print(
                f"first difference: cell {odd.cell}, request {odd.request}: {odd.field} is {odd.ours!r},"
                f" recorded {odd.recorded!r}",
                style="yellow",
            )

    Reply(found.json(), show).print(json)
    return 0 if found.exact == found.requests else 1


def _about(kind: object) -> str:
    """Return the first paragraph of a docstring."""
    text = " ".join((getattr(kind, "__doc__", None) or "").split("\n\n")[0].split())
    return text


def _known(pairs: list[tuple[str, str]]) -> None:
    """Raise InputError for unknown names before anything is computed."""
    from kant.serving.policies import policy_named
    from kant.serving.routers import router_named

    for policy, router in pairs:
        policy_named(policy)
        router_named(router)


def _prepared(
    path: Path, form: str | None, setup: ServeSetup, seed: int
) -> tuple[EngineSettings, Requests, dict[str, Any]]:
    """Return the settings of the engines, the requests, and facts about both for a summary."""
    from kant.serving.read import read_requests

    settings = engine_settings(setup)
    for name, value in (("--ttft", setup.ttft), ("--tpot", setup.tpot)):
        if not value > 0:
            raise InputError(name, "a number of seconds above 0", value)
    coming = read_requests(path, form, seed, setup.requests)
    if setup.rate is not None:
        coming = coming.at_rate(setup.rate)
    about = {
        "workload": coming.name,
        "engines": setup.engines,
        "seed": seed,
    } | engine_about(setup)
    return settings, coming, about


def _run(
    coming: Requests, settings: EngineSettings, setup: ServeSetup, policy: str, router: str, seed: int
) -> tuple[dict[str, Any], Served]:
    """Run once; return the summary, and the result of each request."""
    from kant.serving.fleet import settings_under
    from kant.serving.fleet import simulate as run
    from kant.serving.policies import policy_named
    from kant.serving.routers import router_named
    from kant.serving.signals import said
    from kant.serving.summary import Objectives, summarise

    rule, way = policy_named(policy), router_named(router)
    signals = said(coming, settings.prefix_cache, {policy: rule, router: way})
    served = run(coming, settings, setup.engines, rule, way, seed)
    summary = summarise(served, Objectives(setup.ttft, setup.tpot))
    about = {
        "policy": policy,
        "router": router,
        "engine": settings.engine if settings.engine == "vllm" else f"{settings.engine} {settings.policy}",
        "async_scheduling": settings_under(settings, rule).async_scheduling,
        "speculation": speculation_of(settings),
        "signals": signals,
    }
    return {**about, **summary}, served
