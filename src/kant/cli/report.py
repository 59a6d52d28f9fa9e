"""`kant report`: an HTML page of a journal: what ran where at any time, and all figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from kant.cli.inputs import write_text
from kant.cli.show import console
from kant.model.errors import InputError


def report(
    journal: Annotated[
        list[Path],
        Parameter(
            help="A journal.jsonl, or several to compare: the first is the baseline. A folder of `kant serve` gets its "
            "own tab; without a journal it is the whole page."
        ),
    ],
    /,
    *,
    out: Annotated[Path, Parameter(help="The HTML file to write.")] = Path("report.html"),
    title: Annotated[str | None, Parameter(help="The title of the page.")] = None,
) -> int:
    """Write one HTML file that shows a recorded run at any moment, a simulated or a live one."""
    from kant.report import write_report
    from kant.sim.recount import recount

    if out.is_dir() or not out.absolute().parent.is_dir():
        raise InputError(f"--out {out}", "a file in an existing folder")
    if len(journal) == 1 and journal[0].is_dir():
        _served(journal[0], out, title)
        return 0
    served = [path for path in journal if path.is_dir()]
    if len(served) == len(journal):
        raise InputError("JOURNAL", "a journal with folders of `kant serve`, or one such folder alone")
    parts = {f"Engines: {path.absolute().name}": _part(path) for path in served}
    if len(parts) < len(served):
        raise InputError("JOURNAL", "folders with different names", ", ".join(map(str, served)))
    found = [recount(path) for path in journal if not path.is_dir()]
    zeros = {one.zero for one in found}
    if len(zeros) > 1:
        raise InputError("JOURNAL", "journals whose clocks begin at the same time")
    runs = [one.result for one in found]
    name = title or f"{runs[0].workload}: {', '.join(dict.fromkeys(run.profile for run in runs))}"
    try:
        write_report(out, runs, name, zeros.pop(), parts)
    except OSError as error:
        raise InputError(f"--out {out}", f"a place where a file can be written ({error.strerror})") from None
    console.print(f"report: {out}", soft_wrap=True)
    return 0


def _served(folder: Path, out: Path, title: str | None) -> None:
    """Write the HTML page of a folder of results of `kant serve simulate` or `kant serve compare`."""
    text = _part(folder, title)
    write_text(text, out)
    console.print(f"report: {out}", soft_wrap=True)


def _part(folder: Path, title: str | None = None) -> str:
    """Return the HTML page of a folder of `kant serve` results. Raises InputError if the folder has no such results."""
    from kant.serving.bundle import is_bundle, page_of

    if not is_bundle(folder):
        raise InputError(str(folder), "a journal, or a folder of `kant serve simulate --out`")
    return page_of(folder, title)
