"""`kant serve whatif` and `kant serve gate`: replay a day that a router recorded, with changes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from kant.cli.gate import ends, heading, part
from kant.cli.inputs import Json, Seed, whole
from kant.cli.output import Reply
from kant.cli.serve_engine import EngineOptions, engine_about, engine_settings
from kant.cli.serve_show import milliseconds
from kant.cli.show import console, print_table
from kant.model.errors import InputError

if TYPE_CHECKING:
    from kant.experiments.gate import GateVerdict

SLICES, FEWEST = 12, 20
"""The number of slices of a day, and the minimum requests in a slice: the P99 of fewer requests has no meaning."""

DayFile = Annotated[Path, Parameter(help="A record of `kant serve route --record`, plain or gzip.")]


@Parameter(name="*")
@dataclass(frozen=True)
class ReplayChange(EngineOptions):
    """The current setup, the changed one, and the objectives."""

    router: Annotated[
        str | None, Parameter(help="The new router, which chooses the engine of a request. Default: as now.")
    ] = None
    replicas: Annotated[int | None, Parameter(help="The new number of engines. Default: as now.", converter=whole)] = (
        None
    )
    split: Annotated[
        str | None,
        Parameter(
            help="PREFILL:DECODE, instead of --replicas: numbers of engines for prompts and for outputs. Default: each"
            " engine does both."
        ),
    ] = None
    kv_gb_s: Annotated[
        float, Parameter(help="With --split, GB a second at which the KV of a prompt moves to its decode engine.")
    ] = 25.0
    policy: Annotated[
        str | None, Parameter(help="The new policy, which orders requests on an engine. Default: as now.")
    ] = None
    now_router: Annotated[str | None, Parameter(help="The current router. Default: as recorded.")] = None
    now_policy: Annotated[str | None, Parameter(help="The current policy. Default: as recorded.")] = None
    now_replicas: Annotated[
        int | None, Parameter(help="The current number of engines. Default: as recorded.", converter=whole)
    ] = None
    served: Annotated[str | None, Parameter(help="The model, if the record has several.")] = None
    ttft: Annotated[float, Parameter(help="Objective: seconds to the first token.")] = 2.0
    tpot: Annotated[float, Parameter(help="Objective: seconds for each token after it.")] = 0.1
    slices: Annotated[
        int | None,
        Parameter(
            help=f"Parts of the day that are compared one by one. Default: {SLICES}, or of {FEWEST} requests each.",
            converter=whole,
        ),
    ] = None


CHANGE = ReplayChange()


def whatif(day: DayFile, /, *, change: ReplayChange = CHANGE, seed: Seed = 0, json: Json = False) -> int:
    """Serve a recorded day with another router, policy or number of engines, and print the differences with
    intervals."""
    about, judged = _judged(day, change, 0.0, 0.95, seed)
    return Reply({**about, "figures": _rows(judged)}, lambda: _show(about, judged)).print(json)


def gate(
    day: DayFile,
    /,
    *,
    change: ReplayChange = CHANGE,
    max_regret: Annotated[str, Parameter(help="The allowed regression, as a share of the current value.")] = "2%",
    confidence: Annotated[str, Parameter(help="1 - the rate of false alarms, for all figures together.")] = "95%",
    strict: Annotated[bool, Parameter(help="Also refuse a change that is not proven harmless.", negative="")] = False,
    seed: Seed = 0,
    json: Json = False,
) -> int:
    """Test on a recorded day whether a change does harm. Exit code: 0 if it passes, 1 if not, 2 for bad input."""
    allowed, level = part(max_regret, "--max-regret", 0, 10), part(confidence, "--confidence", 0.5, 0.9999)
    about, judged = _judged(day, change, allowed, level, seed)

    def show() -> None:
        console.print(heading(judged, strict), soft_wrap=True)
        _show(about, judged, verdicts=True)

    Reply({**about, "passes": not judged.refuses(strict), "figures": _rows(judged)}, show).print(json)
    return 1 if judged.refuses(strict) else 0


def _judged(
    path: Path, change: ReplayChange, allowed: float, confidence: float, seed: int
) -> tuple[dict[str, Any], GateVerdict]:
    """Return facts about both setups, and each figure before and after."""
    import numpy as np

    from kant.experiments.gate import GateVerdict, judge
    from kant.serving.replay import FIGURES, FLOOR, Setup, by_slice, read_day, replay, whole
    from kant.serving.summary import Objectives

    for name, value in (("--ttft", change.ttft), ("--tpot", change.tpot)):
        if not value > 0:
            raise InputError(name, "a number of seconds above 0", value)
    settings, day = engine_settings(change), read_day(path, change.served)
    count = len(day.requests)
    most = max(count // FEWEST, 1)
    slices = min(SLICES, most) if change.slices is None else change.slices
    if not 1 <= slices <= most:
        raise InputError("--slices", f"a number of slices from 1 to {most}: each needs {FEWEST} requests", slices)
    now = Setup(change.now_router or day.router, change.now_replicas or day.engines, change.now_policy or day.policy)
    prefill, decode = _split(change)
    engines = prefill + decode or change.replicas or now.engines
    then = Setup(change.router or now.router, engines, change.policy or now.policy, prefill, change.kv_gb_s)
    promise = Objectives(change.ttft, change.tpot)
    new, old = (replay(day, setup, settings, seed) for setup in (then, now))
    found = []
    for name in FIGURES:
        a, b = (by_slice(served, name, slices, promise) for served in (old, new))
        one = judge(
            name, a, b, allowed=allowed, confidence=confidence, metrics=len(FIGURES), floor=FLOOR
        )  # the slices give the intervals, the whole day the values
        found.append(replace(one, old=whole(old, name, promise), new=whole(new, name, promise)))
    seen = day.first[np.isfinite(day.first)]
    about: dict[str, Any] = {
        "day": str(path),
        "requests": count,
        "left_out": day.left_out,
        "slices": slices,
        "objectives": {"ttft_s": change.ttft, "tpot_s": change.tpot},
        "now": str(now),
        "then": str(then),
        "recorded_ttft_s": {
            "mean": float(seen.mean()) if len(seen) else None,
            "p99": float(np.quantile(seen, 0.99)) if len(seen) else None,
        },
        "shadow": day.shadow,
    } | engine_about(change)
    return about, GateVerdict(tuple(found), slices, (), bool((old.engine == new.engine).all()))


def _split(change: ReplayChange) -> tuple[int, int]:
    """Return the number of engines for prompts and for outputs, both 0 if each engine does both. Raises InputError."""
    if not change.kv_gb_s > 0:
        raise InputError("--kv-gb-s", "a number of GB a second above 0", change.kv_gb_s)
    if change.split is None:
        return 0, 0
    if change.replicas is not None:
        raise InputError("--replicas", "none with --split, which states how many engines there are", change.replicas)
    parts = change.split.split(":")
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() and 1 <= int(part) <= 5000 for part in parts):
        raise InputError("--split", "PREFILL:DECODE, two numbers of engines from 1 to 5,000", change.split)
    return int(parts[0]), int(parts[1])


def _rows(judged: GateVerdict) -> list[dict[str, Any]]:
    return [
        {
            "figure": one.metric,
            "now": one.old,
            "then": one.new,
            "change": ends(one.mean_regret),
            "typical_change": ends(one.regret),
            "outcome": one.outcome,
        }
        for one in judged.comparisons
    ]


def _show(about: dict[str, Any], judged: GateVerdict, verdicts: bool = False) -> None:
    from kant.experiments.gate import ends_text

    names = ("", f"now: {about['now']}", f"then: {about['then']}", "change, in the mean of the slices")
    labels = {
        "ttft_s.mean": "first token, mean",
        "ttft_s.p99": "first token, P99",
        "tpot_s.p99": "time per token, P99",
        "late": "outside the objectives",
    }
    rows = []
    for one in judged.comparisons:
        show = "{:.2%}".format if one.metric == "late" else milliseconds
        change = ends_text(one.mean_regret) if one.slices else "no difference"
        words = {"pass": "within the allowed regression", "unsure": "no regression found, none ruled out"}
        verdict = [words.get(one.outcome, one.outcome)] if verdicts else []
        rows.append((labels[one.metric], show(one.old), show(one.new), change, *verdict))
    columns = (*names, "verdict") if verdicts else names
    print_table(columns, rows, f"{about['requests']:,} requests of {about['day']}", left=("", "verdict"))
    if about["left_out"]:
        console.print(f"{about['left_out']:,} requests that no engine served are left out")
    seen = about["recorded_ttft_s"]
    if seen["mean"] is not None:
        said = f"recorded first token: mean {milliseconds(seen['mean'])}, P99 {milliseconds(seen['p99'])};"
        console.print(
            f"{said} compare these with the simulated ones to see the error of the engine's model", soft_wrap=True
        )
    if (told := about["shadow"]) is not None:
        when = f"{milliseconds(abs(told['later_s']))} {'later' if told['later_s'] > 0 else 'earlier'}"
        console.print(
            f"shadow {told['router']}: the same decision for {told['agrees'] / told['requests']:.1%} of"
            f" {told['requests']:,} requests; first tokens {when} by prediction", soft_wrap=True,
        )  # fmt: skip
    console.print(f"latency: {about['latency']}", soft_wrap=True, markup=False, style="dim")
