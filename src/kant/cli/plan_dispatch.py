"""`kant plan dispatch`: many schedulers place short tasks, each with its own, maybe outdated, view of machines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from kant.cli.inputs import Json, Seed, whole
from kant.cli.output import Reply
from kant.cli.show import print_table
from kant.model.errors import InputError
from kant.model.units import parse_duration

if TYPE_CHECKING:
    from kant.optimize.dispatch.tasks import TaskStream


def dispatch(
    file: Annotated[
        Path | None, Parameter(help="Rows id,cores,memMB,disk,duration ms,start ms,type. Default: random tasks.")
    ] = None,
    /,
    *,
    mix: Annotated[Literal["machines", "functions"], Parameter(help="The mix of random tasks.")] = "machines",
    tasks: Annotated[int, Parameter(help="The number of random tasks.", converter=whole)] = 10_000,
    cap: Annotated[str, Parameter(help="The longest run of a random virtual machine.")] = "30s",
    load: Annotated[
        tuple[float, ...], Parameter(help="Load, as a share of all cores. Default: 0.6, 0.8.", negative="")
    ] = (0.6, 0.8),
    policy: Annotated[tuple[str, ...], Parameter(help="Schedulers to compare. Default: all.", negative="")] = (),
    schedulers: Annotated[int, Parameter(help="Schedulers that take turns in placing tasks.", converter=whole)] = 5,
    delay_us: Annotated[int, Parameter(help="The one-way latency of a message, microseconds.", converter=whole)] = 250,
    fifo: Annotated[
        bool, Parameter(help="Machines start tasks strictly in order, and have no slots.", negative="")
    ] = False,
    seeds: Annotated[int, Parameter(help="The number of runs, with seeds from --seed on.", converter=whole)] = 3,
    seed: Seed = 0,
    json: Json = False,
) -> int:
    """Let many schedulers place short tasks on 100 machines of four types, and print the costs and results of each
    method.

    All methods get the same tasks, and the same random choices of machines. Each is compared, seed by seed, with a
    choice between two machines that are queried.
    """
    from kant.metrics.paired import mean_interval
    from kant.optimize.dispatch.dispatchers import DISPATCHERS, Dispatched
    from kant.optimize.dispatch.dispatchers import dispatch as run
    from kant.optimize.dispatch.tasks import MOST, draw_functions, draw_machines, read_tasks

    for name in policy:
        if name not in DISPATCHERS:
            raise InputError("--policy", f"one of {', '.join(DISPATCHERS)}", name)
    for option, value, least, most in (
        ("--tasks", tasks, 2, MOST), ("--seeds", seeds, 1, 1000), ("--delay-us", delay_us, 0, 10**7),
    ):  # fmt: skip
        if not least <= value <= most:
            raise InputError(option, f"a number from {least:,} to {most:,}", value)
    if not load:
        raise InputError("--load", "one load or more")

    def drawn(number: int) -> TaskStream:
        if file is not None:
            return read_tasks(file)
        if mix == "functions":
            return draw_functions(tasks, number)
        return draw_machines(tasks, number, parse_duration(cap, "--cap") / 1e6)

    names, base = list(dict.fromkeys(policy)) or list(DISPATCHERS), "two-choices"
    every = [drawn(seed + n) for n in range(seeds)]
    rows: list[dict[str, Any]] = []

    def interval(values: list[float]) -> dict[str, float | None]:
        found = mean_interval(values)
        return {"mean": found.mean, "half": found.half if len(values) > 1 else None}

    for share in load:
        loaded = [each.at_load(share) for each in every]
        ran: dict[str, list[Dispatched]] = {
            name: [
                run(each, DISPATCHERS[name], seed + n, schedulers=schedulers, delay_us=delay_us, fifo=fifo)
                for n, each in enumerate(loaded)
            ]
            for name in dict.fromkeys((base, *names))
        }
        for name in names:
            pairs = list(zip(ran[name], ran[base], strict=True))
            rows.append(
                {
                    "load": share,
                    "policy": name,
                    "mean_s": interval([mine.mean_s for mine in ran[name]]),
                    "p50_s": interval([mine.quantile_s(0.5) for mine in ran[name]]),
                    "p99_s": interval([mine.quantile_s(0.99) for mine in ran[name]]),
                    "mean_change": interval([mine.mean_s / other.mean_s - 1 for mine, other in pairs]),
                    "p99_change": interval(
                        [mine.quantile_s(0.99) / other.quantile_s(0.99) - 1 for mine, other in pairs]
                    ),
                    "tasks_per_s": sum(len(mine.latencies) / mine.span * 1e6 for mine in ran[name]) / seeds,
                    "scheduler_messages": sum(mine.sent for mine in ran[name]) / seeds,
                    "reports": sum(mine.reports for mine in ran[name]) / seeds,
                    "one_way_messages": sum(mine.one_way for mine in ran[name]) / seeds,
                }
            )
    return Reply({"rows": rows}, lambda: _show(rows)).print(json)


def _show(rows: list[dict[str, Any]]) -> None:
    columns = ("load", "policy", "mean", "compared with two choices", "P50", "P99", "beside", "of schedulers", "all")
    cells = [
        (
            f"{row['load']:g}", row["policy"], f"{row['mean_s']['mean']:.2f}", _percent(row["mean_change"]),
            f"{row['p50_s']['mean']:.2f}", f"{row['p99_s']['mean']:.2f}", _percent(row["p99_change"]),
            f"{row['scheduler_messages']:.2f}", f"{row['one_way_messages']:.2f}",
        )
        for row in rows
    ]  # fmt: skip
    print_table(columns, cells, "From arrival to end, in seconds, and messages per task", left=("policy",))


def _percent(change: dict[str, float | None]) -> str:
    mean, half = change["mean"] or 0.0, change["half"]
    return f"{100 * mean:+.1f} %" + (f" ± {100 * half:.1f}" if half is not None else "")
