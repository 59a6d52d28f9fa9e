"""The map of schedulers: `python -m benchmarks.studies.taxonomy` writes docs/taxonomy.md and its picture anew.

What exists is read from the tags of Kant's policies, and where each paper sits from papers.toml beside this file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kant.api.catalogue import KINDS, PolicyEntry, catalogue
from kant.api.plot.figure import Figure
from kant.api.plot.style import COLOURS, look
from kant.model.taxonomy import Tags, tagged
from kant.model.taxonomy_keys import TAXONOMY
from kant.scheduler.registry import OWN

PAGE = Path(__file__).parents[2] / "docs" / "taxonomy.md"
PICTURE = PAGE.parent / "images" / "taxonomy.svg"
PAPERS = Path(__file__).with_name("papers.toml")


@dataclass(frozen=True, slots=True)
class Paper:
    """A paper, where it appeared, its tags, and the policies of Kant (KIND.NAME) that follow it."""

    name: str
    where: str
    tags: Tags
    policies: tuple[str, ...]

    @property
    def link(self) -> str:
        """`where` with the arXiv number as a link."""
        before, found, number = self.where.partition("arXiv ")
        return f"{before}[arXiv {number}](https://arxiv.org/abs/{number})" if found else before


def papers() -> list[Paper]:
    """Those of papers.toml, in its order."""
    rows = tomllib.loads(PAPERS.read_text(encoding="utf-8"))["papers"]
    return [Paper(row["name"], row["where"], tagged({}, **row["tags"]), tuple(row["policies"])) for row in rows]


def entries() -> list[PolicyEntry]:
    """Kant's own policies."""
    return [entry for entry in catalogue() if entry.package == OWN]


ABOUT = """\
Every policy of Kant carries ten tags, and so does every policy that [a package](policies.md#a-policy-of-your-own)
adds. They say what a scheduler decides about, when, with what knowledge, for which objective and by which method; so
one finds what exists, and sees where an idea is missing.

```sh
kant policies --where method=learned --where unit=request
```

<!-- output -->
```text
ranked
past-future
block
```

Each further `--where` narrows the list. With `--json` the list is one object, and its policies have all their `tags`.
Where no policy has the tags, the exit code is 1:

<!-- fails: 1 -->
```sh
kant policies --where method=learned --where objective=fairness
```

<!-- output -->
```text
no policy has method=learned and objective=fairness
```

A key or a value that the taxonomy does not have is refused:

<!-- fails: 2 -->
```sh
kant policies --where method=magic
```

<!-- output -->
```text
kant: --where: expected method= and one of rule, packing, search, solver, market, learned, randomised, got 'magic'
```

Levels and architectures are after two surveys of L. Sliwko and V. Getov: *Workload Schedulers* ([arXiv
2511.10258](https://arxiv.org/abs/2511.10258)), which divides schedulers into those of operating systems, of clusters
and of big data, and *A Taxonomy of Schedulers* ([arXiv 2511.01860](https://arxiv.org/abs/2511.01860)), which orders
deployed schedulers by architecture and design. The other keys are Kant's.
"""

NOT_SCHEDULERS = """\
Others of the papers that Kant follows schedule no work on machines and have no place here: Power Scheduler ([arXiv
2408.13359](https://arxiv.org/abs/2408.13359)) sets learning rates, Re-Schedule ([arXiv
2510.24832](https://arxiv.org/abs/2510.24832)) the order of training examples ([a study](studies/curriculum.md)),
SEIHAI ([arXiv 2111.08857](https://arxiv.org/abs/2111.08857)) the skills of an agent; MOBIMEM ([arXiv
2512.15784](https://arxiv.org/abs/2512.15784)) and MCPMark ([arXiv 2509.24002](https://arxiv.org/abs/2509.24002)) are
about agents.
"""


def picture() -> Figure:
    """Papers above and Kant's policies by kind below, with a mark or a count under each value that they have."""
    columns = [(key, value) for key, values in TAXONOMY.items() for value in values]
    gaps = [list(TAXONOMY).index(key) * 0.7 for key, _ in columns]
    x = [k + gap for k, gap in enumerate(gaps)]
    every, rows = entries(), papers()
    kinds = [[entry.tags for entry in every if entry.kind == kind] for kind in KINDS]
    below = len(rows) + 0.8
    with look():
        from matplotlib.figure import Figure as Inner

        inner = Inner(figsize=(0.145 * (x[-1] + 1) + 1.3, 0.16 * (below + len(KINDS)) + 1.1))
        axes = inner.subplots()
        for y, paper in enumerate(rows):
            marks = [x[k] for k, (key, value) in enumerate(columns) if value in paper.tags[key]]
            fill, edge = (COLOURS[0], COLOURS[0]) if paper.policies else ("white", COLOURS[1])
            axes.scatter(marks, [y] * len(marks), s=22, c=fill, edgecolors=edge)
            axes.axhline(y, color="#DDDDDD", linewidth=0.5, zorder=0.5)
        for y, own in enumerate(kinds):
            for k, (key, value) in enumerate(columns):
                count = sum(value in tags[key] for tags in own)
                if count:
                    axes.text(x[k], below + y, str(count), ha="center", va="center", fontsize=6)
        for key in TAXONOMY:
            own = [place for place, (other, _) in zip(x, columns, strict=True) if other == key]
            axes.axvspan(own[0] - 0.6, own[-1] + 0.6, color="#F4F4F4", linewidth=0, zorder=0)
            axes.text(own[0] - 0.5, below + len(KINDS) - 0.2, key, fontsize=7, va="top", ha="left", rotation=-35,
                      rotation_mode="anchor")  # fmt: skip
        axes.axhline(below - 0.9, color="#555555", linewidth=0.6)
        axes.set_xlim(-0.9, x[-1] + 0.9)
        axes.set_ylim(below + len(KINDS) - 0.4, -0.8)
        values = [value for _, value in columns]
        axes.set_xticks(x, values, rotation=60, ha="left", rotation_mode="anchor", fontsize=6.5)
        axes.xaxis.tick_top()
        names = [paper.name for paper in rows] + [f"Kant: {kind}" for kind in KINDS]
        axes.set_yticks([*range(len(rows)), *(below + y for y in range(len(KINDS)))], names)
        axes.tick_params(length=0, pad=2)
        axes.grid(False)
        for spine in axes.spines.values():
            spine.set_visible(False)
    return Figure(inner, "which values of the taxonomy each paper has, and how many policies of Kant have")


def page() -> str:
    """The whole page."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# The map of schedulers\n"
    yield "Made by `python -m benchmarks.studies.taxonomy` from the tags themselves.\n"
    yield ABOUT
    yield "## The keys\n"
    yield "| key | values |"
    yield "|---|---|"
    for key, values in TAXONOMY.items():
        yield f"| `{key}` | {'; '.join(f'`{value}`: {meaning}' for value, meaning in values.items())} |"
    yield "\n## What exists\n"
    every = entries()
    for kind in KINDS:
        yield from _table(kind, [(f"`{entry.policy}`", entry.tags) for entry in every if entry.kind == kind])
        yield ""
    yield "## Where each paper sits\n"
    yield "![Papers and their values in the taxonomy; below, counts of Kant's policies](images/taxonomy.svg)\n"
    yield "Filled: Kant has policies that follow the paper, or solve its problem in another way. Hollow: it has none."
    yield "Below the line: how many of Kant's policies have the value.\n"
    yield "| paper | " + " | ".join(TAXONOMY) + " | in Kant |"
    yield "|---" * (len(TAXONOMY) + 2) + "|"
    for paper in papers():
        here = ", ".join(f"`{name.partition('.')[2]}`" for name in paper.policies) or "—"
        yield f"| {paper.name} ({paper.link}) | {_cells(paper.tags)} | {here} |"
    yield ""
    yield NOT_SCHEDULERS.rstrip("\n")


def _table(kind: str, rows: Sequence[tuple[str, Tags]]) -> Iterator[str]:
    yield f"| {kind} | " + " | ".join(TAXONOMY) + " |"
    yield "|---" * (len(TAXONOMY) + 1) + "|"
    for name, tags in rows:
        yield f"| {name} | {_cells(tags)} |"


def _cells(tags: Tags) -> str:
    return " | ".join(", ".join(tags[key]) for key in TAXONOMY)


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")
    picture().save(PICTURE)


if __name__ == "__main__":
    main()
