"""Published numbers beside ours: taken from the pages that the studies wrote, with date, commit and command.

`take` reads a page by published.toml into results/STUDY.json, and `page` makes docs/results.md of these files alone.
Nobody types a number of ours. The commit is that which brought the page; of a page that is not committed yet, the one
that it was made at.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.studies.parts import part_of

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGE = ROOT / "docs" / "results.md"
FOLDER = HERE / "results"


@dataclass(frozen=True, slots=True)
class Study:
    """A study: its module, the pages that it writes below docs/, how it is called, and what it takes."""

    name: str
    pages: tuple[str, ...]
    minutes: float = 0.0
    arguments: str = ""
    extra: str = ""
    inputs: tuple[str, ...] = ()
    sweep: str = ""

    def text(self) -> str:
        """What the study wrote on its pages."""
        pages = [(ROOT / "docs" / page).read_text(encoding="utf-8") for page in self.pages]
        return "\n".join(part_of(text, self.name) for text in pages)

    @property
    def command(self) -> str:
        return f"python -m benchmarks.studies.{self.name}" + (f" {self.arguments}" if self.arguments else "")


def studies() -> dict[str, Study]:
    """All studies, by name: those of studies.toml, and then every other module here that has a PAGE."""
    table = tomllib.loads((HERE / "studies.toml").read_text(encoding="utf-8"))
    found = [
        Study(**{key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()})
        for entry in table["study"]
    ]
    listed = {study.name: study for study in found}
    modules = [path for path in sorted(HERE.glob("*.py")) if path.name != Path(__file__).name]
    others = {path.stem: page for path in modules if (page := page_of(path))}
    return listed | {name: Study(name, (page,)) for name, page in others.items() if name not in listed}


def page_of(module: Path) -> str:
    """The page below docs/ that a module writes, by the words of its PAGE; empty where it has none."""
    for node in ast.parse(module.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and any(getattr(target, "id", "") == "PAGE" for target in node.targets):
            constants = [part for part in ast.walk(node.value) if isinstance(part, ast.Constant)]
            words = [str(part.value) for part in sorted(constants, key=lambda part: (part.lineno, part.col_offset))]
            return "/".join(words[words.index("docs") + 1 :])
    return ""


Row = dict[str, str]


def tables(text: str, section: str) -> list[list[Row]]:
    """The tables below a heading, up to the next heading: rows with their cells by column."""
    part = re.split(rf"^#+ {re.escape(section)}$", text, maxsplit=1, flags=re.MULTILINE)
    if len(part) == 1:
        raise LookupError(f"no heading {section!r}")
    found: list[list[Row]] = []
    header: list[str] = []
    for line in re.split(r"^#+ ", part[1], maxsplit=1, flags=re.MULTILINE)[0].splitlines():
        if not line.startswith("|"):
            header = []
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not header:
            header = _told_apart(cells)
            found.append([])
        elif not all(re.fullmatch(r":?-+:?", cell) for cell in cells):
            found[-1].append(dict(zip(header, cells, strict=True)))
    return found


def _told_apart(names: Sequence[str]) -> list[str]:
    """Names of columns, a second one of a name with a number."""
    return [name if names.index(name) == i else f"{name} ({names[:i].count(name) + 1})" for i, name in enumerate(names)]


def _row(rows: Sequence[Row], begins: Sequence[str]) -> Row:
    """The first row whose first cells begin so; those before the last are the whole cell."""
    for row in rows:
        cells = list(row.values())
        exact = all(cell == begin for cell, begin in zip(cells, begins[:-1], strict=False))
        last = cells[len(begins) - 1]
        if exact and (last == begins[-1] or (len(begins) > 1 and last.startswith(f"{begins[-1]} "))):
            return row
    raise LookupError(f"no row {begins}")


def _numbers(entry: dict[str, Any], text: str) -> Iterator[tuple[str, str, str]]:
    """What it is, the published number, and ours."""
    rows = tables(text, entry["section"])[entry.get("table", 0)]
    if "names" not in entry:
        columns = entry["ours"] if isinstance(entry["ours"], list) else [entry["ours"]]
        chosen = [_row(rows, begins) for begins in entry.get("rows") or [entry["row"]]]
        yield entry["what"], entry["published"], ", ".join(row[column] for row in chosen for column in columns)
        return
    for row in rows:
        what = f"{entry['what']}: {', '.join(row[name] for name in entry['names'])}"
        if "both" in entry:
            ours, published = row[entry["both"]].split(" / ")
        elif "same" in entry:  # the published number stands in brackets only where it differs
            ours, _, published = row[entry["same"]].removesuffix(")").partition(" (")
            published = published or ours
        else:
            ours, published = row[entry["ours"]], row[entry["published"]]
        yield what, published, ours


def take(study: Study, cpu_s: float | None = None) -> dict[str, Any] | None:
    """The record of a study from its pages, written to its file; None where it has no page or no published number.

    Raises LookupError where a page has not what published.toml says.
    """
    published = tomllib.loads((HERE / "published.toml").read_text(encoding="utf-8"))
    if not all((ROOT / "docs" / page).exists() for page in study.pages):
        return None
    text = study.text()
    rows = [
        {"system": entry["system"], "source": entry["source"], "what": what, "published": theirs, "ours": ours}
        for entry in (*published["number"], *published["table"])
        if entry["study"] == study.name
        for what, theirs, ours in _numbers(entry, text)
    ]
    path = FOLDER / f"{study.name}.json"
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    date, commit = _made(study)
    record = {
        "study": study.name, "pages": list(study.pages), "command": study.command, "date": date, "commit": commit,
        "cpu_s": before.get("cpu_s") if cpu_s is None else round(cpu_s), "rows": rows,
    }  # fmt: skip
    FOLDER.mkdir(exist_ok=True)
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return record if rows else None


def _made(study: Study) -> tuple[str, str]:
    """The day on which the pages of a study were made, and the commit."""
    pages = [f"docs/{page}" for page in study.pages]
    if _git("status", "--porcelain", "--", *pages):
        return datetime.now(UTC).date().isoformat(), _git("rev-parse", "--short=10", "HEAD")
    date, commit = _git("log", "-1", "--format=%cs %H", "--", *pages).split()
    return date, commit[:10]


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def records() -> list[dict[str, Any]]:
    """The records of all studies that have published numbers, in the order of studies.toml."""
    found = [
        json.loads(path.read_text(encoding="utf-8")) for name in studies() if (path := FOLDER / f"{name}.json").exists()
    ]
    return [record for record in found if record["rows"]]


def page(found: Sequence[dict[str, Any]]) -> str:
    """docs/results.md: a table for each system, with its first one that of Kant's paper."""
    systems = dict.fromkeys(row["system"] for record in found for row in record["rows"])
    lines = [TEXT]
    for system in sorted(systems, key=lambda name: name != "Kant"):
        rows = [(record, row) for record in found for row in record["rows"] if row["system"] == system]
        lines += [f"## {system}\n", "; ".join(dict.fromkeys(row["source"] for _, row in rows)) + ".\n"]
        lines += ["| what | published | ours | made |", "|---|---|---|---|"]
        lines += [f"| {row['what']} | {row['published']} | {row['ours']} | {_link(record)} |" for record, row in rows]
        lines.append("")
    lines += ["## How each was made\n", "| study | command | date | commit | CPU minutes |", "|---|---|---|---|---|"]
    for record in found:
        cpu = "" if record["cpu_s"] is None else f"{record['cpu_s'] / 60:.1f}"
        lines.append(f"| {_link(record)} | `{record['command']}` | {record['date']} | {record['commit']} | {cpu} |")
    return "\n".join(lines) + "\n"


def _link(record: dict[str, Any]) -> str:
    return f"[{record['study']}]({record['pages'][0]})"


TEXT = """# Results

Every published number that a study of this project has beside its own: of Kant's paper, and of the systems that it is
compared with. Intervals are 95 %; the page of the study says what they are over. `python -m benchmarks.studies all`
makes all studies anew, and then this page of what they have written.

The workloads of Kant's paper are not public: ours are drawn after published facts of other clusters, so the direction
and the size of an effect compare, not the last digit. Where traces and artifacts are public the inputs are the same.
"""


def main() -> None:
    for study in studies().values():
        take(study)
    PAGE.write_text(page(records()), encoding="utf-8")


if __name__ == "__main__":
    main()
