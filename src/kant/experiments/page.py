"""The page of an experiment: tables of means and paired differences, in Markdown, in HTML and for a terminal."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kant.experiments.figures import SHARES, show, show_difference
from kant.experiments.results import FigureChange, Results, change_of, mean_of
from kant.metrics.paired import Interval


@dataclass(frozen=True, slots=True)
class Sheet:
    """One table with its title."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def sheets(results: Results, names: Sequence[str]) -> Iterator[Sheet]:
    """Yield for each workload and cluster the means, and with several profiles the differences from the first."""
    first, *others = results.experiment.profiles
    for place in results.cells():
        title = f"{place[0]} on {place[1]}"
        rows = [
            (
                profile,
                str(len(results.samples(place, profile))),
                *(_mean(results, place, profile, name) for name in names),
            )
            for profile in results.experiment.profiles
        ]
        yield Sheet(title, ("profile", "runs", *names), tuple(rows))
        if others:
            rows = [(profile, *(_change(results, place, profile, name) for name in names)) for profile in others]
            yield Sheet(f"{title}: difference from {first}", ("profile", *names), tuple(rows))


def notes(results: Results) -> list[str]:
    """Notes on the numbers for the reader."""
    found = ["Intervals are 95 % by Student's t over the samples (seeds and parts); one sample has none."]
    if len(results.experiment.profiles) > 1:
        found.append("Differences are between runs with the same jobs and seed. A * marks an interval without 0.")
    if _alike(results):
        found.append("Runs that decide the same under several seeds count as one sample: the seed changes nothing.")
    missing = len(results.experiment.runs) - len(results.finished)
    if missing:
        found.append(f"{missing} of {len(results.experiment.runs)} runs are missing.")
    return found


def _alike(results: Results) -> bool:
    for place in results.cells():
        for profile in results.experiment.profiles:
            runs = list(results.samples(place, profile).values())
            if len({results.summary(run)["digest"] for run in runs}) < len(runs):
                return True
    return False


def _mean(results: Results, place: tuple[str, str], profile: str, name: str) -> str:
    found = mean_of(results, place, profile, name)
    return "" if found is None else _with_half(found, show(name))


def _with_half(found: Interval, shown: Callable[[float], str]) -> str:
    return shown(found.mean) if math.isinf(found.half) else f"{shown(found.mean)} ± {shown(found.half)}"


def _change(results: Results, place: tuple[str, str], profile: str, name: str) -> str:
    found = change_of(results, place, profile, name)
    return "" if found is None else change_text(found, name)


def change_text(change: FigureChange, name: str) -> str:
    """A difference as text, relative to the baseline, too, unless it is a share: `-5m ± 1m (-12.0 %) *`."""
    difference, shown = change.difference, show_difference(name)
    sign = "+" if difference.mean > 0 else ""
    whole = math.isfinite(change.ratio) and name.partition(".")[0] not in SHARES
    part = f" ({100 * (change.ratio - 1):+.1f} %)" if whole else ""
    sure = not math.isinf(difference.half) and (difference.low > 0 or difference.high < 0)
    return f"{sign}{_with_half(difference, shown)}{part}{' *' if sure else ''}"


def markdown(results: Results, names: Sequence[str], failures: Sequence[tuple[str, str, str]]) -> str:
    """Return the page as Markdown. `failures` has the name, the reason and the command of each failed run."""
    parts = [f"# {cell(results.experiment.name)}", " ".join(notes(results))]
    for sheet in sheets(results, names):
        lines = [f"## {cell(sheet.title)}", "", _line(sheet.header), _line(["---"] * len(sheet.header))]
        parts.append("\n".join([*lines, *(_line(row) for row in sheet.rows)]))
    if failures:
        rows = [_line([name, error, f"`{command}`"]) for name, error, command in failures]
        parts.append("\n".join(["## Failed", "", _line(("run", "why", "command")), _line(["---"] * 3), *rows]))
    return "\n\n".join(parts) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell(text) for text in cells)} |"


def cell(text: str) -> str:
    """Escape a text for a table cell."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


STYLE = """body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:75rem;padding:0 1rem}
table{border-collapse:collapse;margin:1rem 0;font-variant-numeric:tabular-nums}
th,td{border:1px solid #8886;padding:.3rem .7rem;text-align:right}th:first-child,td:first-child{text-align:left}
code{word-break:break-all}:root{color-scheme:light dark}"""


def html_page(results: Results, names: Sequence[str], failures: Sequence[tuple[str, str, str]]) -> str:
    """The page as one self-contained HTML file."""
    title = html.escape(results.experiment.name)
    parts = [f"<h1>{title}</h1>", f"<p>{html.escape(' '.join(notes(results)))}</p>"]
    parts += [_html_table(sheet) for sheet in sheets(results, names)]
    if failures:
        parts.append(_html_table(Sheet("Failed", ("run", "why", "command"), tuple(failures))))
    head = f'<meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body><main>{"".join(parts)}</main></body></html>\n'


def _html_table(sheet: Sheet) -> str:
    header = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in sheet.header)
    rows = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in sheet.rows)
    title = html.escape(sheet.title)
    return f"<h2>{title}</h2><table><thead><tr>{header}</tr></thead><tbody>{rows}</tbody></table>"
