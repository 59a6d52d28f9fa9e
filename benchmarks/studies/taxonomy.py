"""The map of schedulers: `python -m benchmarks.studies.taxonomy` writes docs/taxonomy.md anew.

What exists is read from the tags of Kant's policies, and where each paper sits from papers.toml beside this file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kant.api.catalogue import KINDS, Entry, catalogue
from kant.model.taxonomy import TAXONOMY, Tags, tagged
from kant.scheduler.registry import OWN

PAGE = Path(__file__).parents[2] / "docs" / "taxonomy.md"
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


def entries() -> list[Entry]:
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
2510.24832](https://arxiv.org/abs/2510.24832)) the order of training examples, SEIHAI ([arXiv
2111.08857](https://arxiv.org/abs/2111.08857)) the skills of an agent; MOBIMEM ([arXiv
2512.15784](https://arxiv.org/abs/2512.15784)) and MCPMark ([arXiv 2509.24002](https://arxiv.org/abs/2509.24002)) are
about agents.
"""


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
    yield "In Kant are policies that follow the paper, or that solve its problem in another way.\n"
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


if __name__ == "__main__":
    main()
