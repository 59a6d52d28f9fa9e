"""Prints why a job waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kant.cli.plain import say, section
from kant.model.units import show_duration


def show_why(found: dict[str, Any]) -> None:
    """Print why a job of this machine waits, or its phase."""
    job = found["job"]
    because = f": {found['sentence']}" if found["sentence"] else ""
    say(f"{job}: it is {found['phase']}{because}", "bold")
    section("workflow", stage_lines(found.get("stage")))
    answer, so_far = found["answer"], waits(found["waited_us"]) if found["waited_us"] else []
    if answer is None:
        section("waited", so_far)
        return
    now = answer["time_us"]
    say(f"it has waited {show_duration(now - answer['since_us'])}", "dim")
    explained(answer, section)
    early, late = (due(answer["expected_us"], name, now) for name in ("p50", "p90"))
    times = f"P50 {early}, P90 {late}" if answer["as_of_us"] >= 0 else "not forecast yet: try again"
    section("expected start", [times, *rests_on(answer), *earlier_lines(answer)])
    section("wait or place", [answer["wait_or_place"]["sentence"]] if answer["wait_or_place"] else [])
    section("waited so far", so_far)


def explained(answer: dict[str, Any], section: Callable[[str, list[str]], None]) -> None:
    """Print with `section` why a job waits, what would change that, and its position."""
    rivals, own = answer["among_rivals"], answer["in_queue"]
    section("evidence", [each["sentence"] for each in answer["facts"]])
    section("has lost its place to", [", ".join(answer["bad_nodes"])] if answer.get("bad_nodes") else [])
    section("what would let it start", [each["sentence"] for each in answer["remedies"]])
    more = [one["remedy"] for one in answer.get("more_nodes", ())]
    before = rivals["rank"] - 1
    others = f", unless {'a job' if before == 1 else f'one of {before:,} jobs'} before it takes the place,"
    section(f"starts now{others if before else ''} if", [*now_if(answer["starts_now_if"]), *more])
    ranks = (
        f"{rivals['rank']:,} of {rivals['of']:,} among the waiting jobs that compete for its GPUs, "
        f"{own['rank']:,} of {own['of']:,} in its queue"
    )
    section("position", [ranks])


def stage_lines(stage: dict[str, Any] | None) -> list[str]:
    """Return lines about the workflow stage of a job, and how much later it may end, if known."""
    if stage is None:
        return []
    lines = [f"stage {stage['stage']} of {stage['workflow']}"]
    if stage.get("critical_path"):
        slack = stage.get("slack_s", -1.0)
        late = "it is critical" if slack < 1e-6 else f"it has {show_duration(slack * 1e6)} of slack"
        length = show_duration(stage["length_s"] * 1e6)
        lines.append(f"{late}; the critical path takes {length}: {' -> '.join(stage['critical_path'])}")
    return lines


def rests_on(row: dict[str, Any]) -> list[str]:
    """Return lines about the basis of an expected start, if known."""
    return [row["rests_on"]["sentence"]] if row["rests_on"] else []


def now_if(found: dict[str, Any]) -> list[str]:
    """Return lines about what would start a job now. Empty for a job that can never start, since its reason says so."""
    none = found["none"]
    return [each["sentence"] for each in found["changes"]] or ([none] if none and none.startswith("proven") else [])


def waits(waited: dict[str, int]) -> list[str]:
    """Return lines about a wait by cause, the longest first."""
    causes = sorted(((span, cause) for cause, span in waited.items() if cause != "total" and span), reverse=True)
    split = ": " + ", ".join(f"{cause} {show_duration(span)}" for span, cause in causes) if causes else ""
    return [show_duration(waited["total"]) + split]


def earlier_said(earlier: Any) -> str:
    """Return how accurate earlier forecasts were, given as an object or as JSON; or a sentence that this is unknown."""
    from kant.insight.track_record import UNCALIBRATED, track_record

    said = track_record(**earlier) if isinstance(earlier, dict) else str(earlier or "")
    return said or UNCALIBRATED


def earlier_lines(answer: dict[str, Any]) -> list[str]:
    """Return lines about how accurate earlier answers were, if a start is expected."""
    return [earlier_said(answer["earlier"])] if answer["expected_us"]["p50"] is not None else []


def due(expected: dict[str, Any], name: str, now: int) -> str:
    """Return the time until an expected start, or that there is none."""
    start = expected[name]
    if start is None:
        return "never" if expected["never"] else "unknown"
    return f"in {show_duration(max(start - now, 0))}"
