"""Which policy acts now? `python -m benchmarks.studies.router [--cache FILE]`: about ten minutes of one core.

Fixed policies, the router of `kant-weather`, and two kinds of look-ahead that know what comes (router_ahead.py): on
weeks drawn after published clusters and on those of the real traces in `../shared/data`, each virtual cluster by
itself. Writes docs/studies/router.md.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from benchmarks.data import DATA
from benchmarks.studies.router_ahead import DAYS, FLOOR, OTHER, Week, World, ahead, one_hour, to_the_end
from kant.metrics.paired import mean_interval
from kant.scheduler.profile import Profile, builtin_texts, parse_profile
from kant.workload.digest import workload_digest
from kant.workload.generate import generate
from kant.workload.read import read_workload

PAGE = Path(__file__).parents[2] / "docs" / "studies" / "router.md"
SIMULATION = """
[simulation]
estimates = "none"
checkpoint_s = 3600
resume_cost = [[1, 7], [8, 30], [1000000, 60]]
"""
WEEK_S = 604_800

BACKFILL = 'policy = "backfill"\ntimeout_s = 0'
FIXED = {
    FLOOR: ('policy = "stretch"\nprobability = 0', BACKFILL),
    OTHER: ('policy = "stretch"', BACKFILL),
    "attained, 100": ('policy = "stretch"\nprobability = 0\nfactor = 100', BACKFILL),
    "after a minute": ('policy = "stretch"', BACKFILL.replace("0", "60")),
    "after ten": ('policy = "stretch"', BACKFILL.replace("0", "600")),
    "las": ('policy = "las"', 'policy = "preemptive"'),
}
"""Order and discipline of each policy that does not change."""


def drawn(weeks: Sequence[tuple[str, float, int]]) -> Iterator[Week]:
    """Weeks of the generator: a row of it, the load, and the seed."""
    for row, load, seed in weeks:
        yield Week(f"{row}, load {load}", generate(row, gpus=128, load=load, days=DAYS, seed=seed), "16x8")


def philly() -> pl.DataFrame:
    """Jobs of Philly, by virtual cluster."""
    return pl.read_csv(DATA / "philly_jobs.csv.gz", schema_overrides={"vc": pl.Utf8})


def ricc() -> pl.DataFrame:
    """Jobs of RICC on at least eight of its nodes of eight processors; a node is a GPU here."""
    with gzip.open(DATA / "RICC-2010-2.swf.gz", "rt") as file:
        jobs = [[int(each) for each in line.split()[1:5]] for line in file if not line.startswith(";")]
    rows = [(submit, run, -(-processors // 8)) for submit, _, run, processors in jobs if processors >= 64 and run > 0]
    return pl.DataFrame(rows, ["submit_s", "duration_s", "gpus"], orient="row").with_columns(vc=pl.lit("ricc"))


def openb() -> pl.DataFrame:
    """Pods of Alibaba's openb with whole GPUs, from when they were created to when they were deleted."""
    pods = pl.read_csv(DATA / "openb_pods.csv.gz").filter(
        (pl.col("workload") == "default") & (pl.col("gpu_milli") == 1000) & pl.col("deletion_time").is_not_null()
    )
    return pods.select(
        submit_s=pl.col("creation_time").cast(pl.Int64),
        duration_s=(pl.col("deletion_time") - pl.col("creation_time")).cast(pl.Int64),
        gpus=pl.col("num_gpu"),
        vc=pl.lit("openb"),
    )


SOURCES: tuple[tuple[Callable[[], pl.DataFrame], int], ...] = ((philly, 450), (ricc, 650), (openb, 1000))
"""The traces in `../shared/data`; weeks with more jobs are left out, for they take too long."""


def weeks_of(rows: pl.DataFrame, most: int) -> Iterator[tuple[int, Week]]:
    """The weeks of each virtual cluster of a trace, with their numbers: those that fill most of a cluster made for
    them, with 60 to `most` jobs."""
    rows = rows.with_columns(week=pl.col("submit_s") // WEEK_S)
    for (vc, week), own in rows.sort("vc", "week", "submit_s").group_by("vc", "week", maintain_order=True):
        load = float((own["duration_s"] * own["gpus"]).sum()) / WEEK_S
        nodes = max(round(load / 8 / 0.95), -(-int(own["gpus"].max()) // 8))  # type: ignore[arg-type]
        if 60 <= own.height <= most and load > 0.6 * 8 * nodes:
            with tempfile.NamedTemporaryFile(suffix=".csv") as file:
                own.with_row_index("id").select(
                    "id", pl.col("submit_s") - week * WEEK_S, "gpus", runtime_s=pl.col("duration_s").clip(1)
                ).write_csv(file.name)
                yield int(week), Week(f"{vc}, week {week}", read_workload(Path(file.name)), f"{nodes}x8")


TAUGHT = (
    ("helios-venus", 0.9, 101), ("helios-venus", 1.0, 102), ("helios-venus", 1.2, 103), ("philly", 0.9, 101),
)  # fmt: skip
HELD_OUT = (
    ("helios-venus", 1.0, 201), ("helios-venus", 1.2, 202), ("helios-venus", 0.9, 204),
)  # fmt: skip
LAST_TAUGHT = 7
"""Weeks of a trace up to this number are taught."""


def fixed(policy: str) -> Profile:
    """A profile with one policy, in a world in which preemption costs."""
    order, discipline = FIXED[policy]
    rest = builtin_texts()["kant-weather"].partition("[placement]")[2].partition("[router]")[0]
    text = f'name = "{policy}"\nabout = ""\n[order]\n{order}\n[discipline]\n{discipline}\n[placement]{rest}'
    if "las" in policy:  # its discipline preempts by itself
        text = text.replace('[preemption]\nreclaim = "nominal"', "")
    return parse_profile(text + SIMULATION, policy)


def routed() -> Profile:
    """`kant-weather`."""
    return parse_profile(builtin_texts()["kant-weather"] + SIMULATION, "kant-weather")


class Figures:
    """Mean bounded slowdowns by week and policy, in a file to which each new one is added at once."""

    def __init__(self, file: Path | None) -> None:
        self.file = file
        self.known = json.loads(file.read_text()) if file is not None and file.exists() else {}

    def of(self, week: Week, policy: str) -> float:
        """The figure, which is measured now if it is not known; nan for what takes too long."""
        if policy == "to the end" and len(week.jobs) > MOST_JOBS:
            return float("nan")
        made = MEASURES.get(policy)
        profile = fixed(policy) if made is None else routed()
        decides = [workload_digest(week.jobs), week.cluster, policy, profile.text]
        key = f"{week.name}: {policy}: {hashlib.blake2b(repr(decides).encode(), digest_size=6).hexdigest()}"
        if key not in self.known:
            self.known[key] = World(week, profile).mean() if made is None else made(week, profile)
            print(key, round(self.known[key], 3), flush=True)
            if self.file is not None:
                self.file.write_text(json.dumps(self.known, indent=1))
        return float(self.known[key])

    def table(self, weeks: Sequence[Week], policies: Sequence[str]) -> NDArray[np.float64]:
        """A row for each week: its figures. All weeks under one policy come first."""
        return np.array([[self.of(week, policy) for week in weeks] for policy in policies]).T


MEASURES: dict[str, Callable[[Week, Profile], float]] = {
    "router": lambda week, profile: World(week, profile).mean(),
    "an hour ahead": lambda week, profile: ahead(week, profile, one_hour),
    "to the end": lambda week, profile: ahead(week, profile, to_the_end),
}
"""What changes between two policies; the last `AHEAD` of them know what comes."""
AHEAD, MOST_JOBS = 2, 400
"""The last of them runs two whole weeks at each hour, and is measured on weeks of at most so many jobs."""


def measure(figures: Figures) -> str:
    """The page."""
    found = [each for source, most in SOURCES if DATA.exists() for each in weeks_of(source(), most)]
    taught = [*drawn(TAUGHT), *(week for number, week in found if number <= LAST_TAUGHT)]
    held = [*drawn(HELD_OUT), *(week for number, week in found if number > LAST_TAUGHT)]
    held = sorted(held, key=lambda week: len(week.jobs))
    after, before = figures.table(held, [*FIXED, *MEASURES]), figures.table(taught, [*FIXED])
    return page([week.name for week in held], before, after)


def page(names: list[str], taught: NDArray[np.float64], held: NDArray[np.float64]) -> str:
    """The page of these figures: a row for each week, in the columns of `FIXED` and `MEASURES`."""
    head = (*FIXED, *MEASURES)
    means, whole = taught.mean(axis=0), held.mean(axis=0)
    best = int(means.argmin())
    lines = [HEAD.format(taught=len(taught), most=MOST_JOBS), "", f"| held-out week | {' | '.join(head)} |"]
    lines += ["|---" * (len(head) + 1) + "|"]
    for name, figures in zip([*names, "mean"], [*held, whole], strict=True):
        lines.append(f"| {name} | " + " | ".join("-" if np.isnan(each) else f"{each:.3f}" for each in figures) + " |")
    lines += [f"| mean of the weeks before | {' | '.join(f'{each:.3f}' for each in means)} |{' |' * len(MEASURES)}", ""]
    floor, router, ahead = held[:, best], held[:, head.index("router")], held[:, -AHEAD:]
    known = ~np.isnan(ahead)
    lines += [
        f"The best fixed policy on the weeks before is `{list(FIXED)[best]}`. Beside it, on the held-out weeks, and",
        f"what part of the gap to each look ahead is closed; {int(known[:, 1].sum())} weeks have *to the end*.",
        "",
        "| | difference of the mean | gap to *an hour ahead* closed | gap to *to the end* closed | worst week |",
        "|---|---|---|---|---|",
    ]
    for name in ("predicted", *MEASURES):
        own = held[:, head.index(name)]
        gaps = [_closed(floor, own, each) for each in ahead.T]
        worst = 100 * np.nanmax(own / floor - 1)
        lines.append(f"| {name} | {_apart(own - floor)} | {' | '.join(gaps)} | {worst:+.1f} % |")
    real = np.array([not name.startswith(tuple(row for row, *_ in HELD_OUT)) for name in names])
    said = END.format(
        lowest=list(FIXED)[int(whole[: len(FIXED)].argmin())],
        floor=list(FIXED)[best],
        gap=(floor - ahead[:, 0])[real].mean(),
        over=(floor - ahead[:, 0])[~real].mean(),
        all=_apart(ahead[:, 0] - floor),
        part=_closed(floor, router, ahead[:, 0]),
        differs=int((np.abs(router - floor) > 0.0005).sum()),
        weeks=len(names),
        worst=100 * (router / floor - 1).max(),
    )
    return "\n".join([*lines, "", said])


def _closed(floor: NDArray[np.float64], own: NDArray[np.float64], ahead: NDArray[np.float64]) -> str:
    """The part of the gap between the floor and a look ahead that a policy closes, on the weeks that have all three."""
    on = ~np.isnan(own + ahead)
    gap = (floor - ahead)[on].sum()
    if not gap:
        return "-"
    closed = (floor - own)[on].sum() / gap
    return f"{closed:.0%}" if closed > -0.005 else "none"


def _apart(differences: NDArray[np.float64]) -> str:
    found = mean_interval(differences[~np.isnan(differences)].tolist())
    return f"{found.mean:+.3f} ± {found.half:.3f}"


HEAD = """# Which policy acts now

Made by `python -m benchmarks.studies.router`, with the traces in `../shared/data` (Philly, RICC, openb); without
them the page has the drawn weeks alone. `--cache FILE` keeps figures, so that the same command goes on.

Mean bounded slowdown: from submission to end over run time, of at least ten seconds; what is done again after a
stop counts. Drawn weeks are after published clusters, on 16 nodes of 8 GPUs. Real weeks are those of one virtual
cluster each, on as many nodes as it fills. Nobody knows run times, but learns them within the week; jobs save their
work every hour, and to stop one costs what was measured for Helios (7 to 60 s).

Fixed policies are `stretch` by how long jobs have run (*attained*) or by learned run times (*predicted*), with a
factor of 10 or 100 and no patience; *after a minute* and *after ten* are *predicted* where a late job waits so long
before it takes its place back; *las* is least attained service, preemptive. *Router* is
[`kant-weather`](../profiles.md#router): while learned run times hold, its rule proposes *predicted*, and a look-ahead
from the present alone has to confirm it, else *attained* acts. Two looks ahead that know all that comes run both
policies from a copy of the run, at each hour, as the demonstrations do from which the scheduler of SEIHAI (arXiv
2111.08857) learns. *An hour ahead* lets the one act that is better after an hour. *To the end* leaves *attained* for
an hour if the whole week is then better, so no week is worse; it runs two whole weeks at each hour, and is measured on
weeks of at most {most} jobs. Weeks with fewer than 60 jobs are left out, and those with more than 450 of Philly, 650 of
RICC and 1,000 of openb. The policies and the bounds of the rule were chosen on {taught} other weeks, the real ones of
them before all that are held out."""
END = """\
## What this says

- *The floor is what counts.* Of the fixed policies `{floor}` has the lowest mean on the weeks before, and
  `{lowest}` on those held out, and no catastrophe: a job of a second that was predicted to run for hours waits a
  day under *predicted*, and gangs starve small jobs under *las*.
- *On real weeks there is hardly a gap to close.* *An hour ahead*, which knows all that comes, is better than the floor
  by {gap:.3f} there, and by {over:.3f} on drawn weeks; on all of them its difference is {all}. Where a policy is
  right, it is right for days: the better one of the next hour is mostly the floor.
- *The router keeps its floor and closes {part} of the gap.* Wanted were 40 %, and no week more
  than 2 % worse: it differs from its floor on {differs} of {weeks} weeks, and is {worst:+.1f} % beside it on the worst.
  What the two looks ahead know is who comes next. From the present alone, what both policies do with those who wait
  mostly differs by less than the error of predicted run times, so most proposals are not confirmed.
- *Pin it* where predictions are known to be good or bad: `kant profiles pin FILE predicted`, or `attained`.

SEIHAI's own figures are of a game and do not compare. Weeks differ by more than policies do, so each is shown.
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--cache", type=Path, help="figures that this file has are not measured again; new ones are added"
    )
    parser.add_argument("--out", type=Path, default=PAGE)
    asked = parser.parse_args()
    asked.out.write_text(measure(Figures(asked.cache)))


if __name__ == "__main__":
    main()
