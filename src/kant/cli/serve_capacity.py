"""`kant serve capacity` and `kant serve removal`: the load that replicas can serve, and the cost of removing one."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path  # noqa: F401  (cyclopts reads the annotations of EngineOptions here)
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from kant.cli.inputs import Json, Seed, numbers, whole
from kant.cli.output import Reply
from kant.cli.serve_engine import EngineOptions, engine_about, engine_settings
from kant.cli.serve_show import show_capacity, show_removal
from kant.model.errors import InputError

if TYPE_CHECKING:
    from kant.serving.service import Service


@Parameter(name="*")
@dataclass(frozen=True)
class ServiceOptions(EngineOptions):
    """The replicas of a service, its requests, and its objectives."""

    mix: Annotated[
        str, Parameter(help="The requests: a kind of `kant serve generate`, or a file of requests for its lengths.")
    ] = "conversation"
    burstiness: Annotated[
        float, Parameter(help="The coefficient of variation of the times between arrivals; 1: a Poisson process.")
    ] = 1.0
    ttft: Annotated[float, Parameter(help="Objective, P99 of a minute: seconds to the first token.")] = 2.0
    tpot: Annotated[float, Parameter(help="Objective, P99 of a minute: seconds for each token after it.")] = 0.1
    router: Annotated[str, Parameter(help="The router, which chooses the replica of a request.")] = "least-tokens"
    policy: Annotated[str, Parameter(help="The policy that orders requests on a replica.")] = "fcfs"


SERVICE = ServiceOptions()


def capacity(
    *,
    replicas: Annotated[str, Parameter(help="Numbers of replicas to measure, such as 1,2,4.")] = "1,2,4",
    service: ServiceOptions = SERVICE,
    requests: Annotated[
        int, Parameter(help="The approximate number of requests in a trial.", converter=whole)
    ] = 12_000,
    minutes: Annotated[int, Parameter(help="The shortest trial at the rate found.", converter=whole)] = 10,
    share: Annotated[float, Parameter(help="The share of minutes in which the objectives must be met.")] = 0.995,
    seed: Seed = 0,
    json: Json = False,
) -> int:
    """Find the most requests a second that some replicas serve within the objectives, on simulated engines."""
    from kant.serving.capacity import capacity as measured

    promised, about = _service(service, seed)
    found = []
    for number in numbers(replicas, "--replicas", "1,2,4"):
        most = measured(promised, number, requests, share, seed, minutes)
        row = {"replicas": number, "requests_per_s": most.rate, "requests_per_s_each": most.rate / number}
        found.append({**row, **asdict(most.trial)})
    summary = {**about, "share": share, "seed": seed, "capacity": found}
    return Reply(summary, lambda: show_capacity(summary)).print(json)


def removal(
    *,
    replicas: Annotated[int, Parameter(help="Number of replicas before one is missing.", converter=whole)] = 4,
    rate: Annotated[float, Parameter(help="Requests a second.")] = 10.0,
    seconds: Annotated[float, Parameter(help="How long one replica is missing.")] = 120.0,
    kill: Annotated[
        bool, Parameter(help="The replica stops at once, instead of finishing its requests.", negative="")
    ] = False,
    service: ServiceOptions = SERVICE,
    runs: Annotated[int, Parameter(help="Runs with other requests, for the confidence interval.", converter=whole)] = 4,
    seed: Seed = 0,
    json: Json = False,
) -> int:
    """Print the cost of taking one replica away for some seconds: requests that are late or lost."""
    from kant.serving.removal import removal as measured

    if not 1 <= runs <= 1000:
        raise InputError("--runs", "a number of runs from 1 to 1000", runs)
    promised, about = _service(service, seed)
    found = [asdict(measured(promised, replicas, rate, seconds, seed + k, drain=not kill)) for k in range(runs)]
    asked = {"replicas": replicas, "rate": rate, "seconds": seconds, "kill": kill, "seed": seed}
    mean = {name: sum(row[name] for row in found) / runs for name in found[0]}
    summary = {**about, **asked, "mean": mean, "runs": found}
    return Reply(summary, lambda: show_removal(summary)).print(json)


def _service(options: ServiceOptions, seed: int) -> tuple[Service, dict[str, Any]]:
    """Return the service that the options describe, and facts about it for a summary."""
    from kant.serving.service import Service, mix_named
    from kant.serving.summary import Objectives

    promise = Objectives(options.ttft, options.tpot)
    mix = mix_named(options.mix, options.burstiness, seed)
    found = Service(engine_settings(options), mix, promise, options.router, options.policy)
    promised = {"mix": mix.name, "objectives": {"ttft_s": options.ttft, "tpot_s": options.tpot}}
    about = engine_about(options) | promised
    return found, about
