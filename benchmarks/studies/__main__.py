"""Make the pages of studies anew: `python -m benchmarks.studies all`, or NAME …, or `--list`.

    all                 every study, and then docs/results.md
    results             docs/results.md alone, of the pages that are there
    --only NAME,NAME    of all, these
    --jobs N            so many studies at a time; some use several cores themselves
    --list              what takes how long

Inputs are pinned: a file of real traces whose SHA-256 is not that of studies.toml is refused, and a study whose inputs
or extra are not there is left out and named. What a study prints is in build/studies/NAME.log. Exits with 1 where one
was left out or failed.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import shlex
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from benchmarks.data import DATA
from benchmarks.studies.results import FOLDER, HERE, PAGE, ROOT, Study, page, records, studies, take
from kant.model.errors import install_command

LOGS = ROOT / "build" / "studies"
EXTRAS = {"optimize": "ortools"}


def main(words: Sequence[str]) -> int:
    known = studies()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.studies", description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="all|results|NAME")
    parser.add_argument("--only", default="", help="of all, these: names with commas between")
    parser.add_argument("--jobs", type=int, default=1, help="so many studies at a time")
    parser.add_argument("--list", action="store_true", help="what takes how long")
    options = parser.parse_args(words)
    only = [name for name in options.only.split(",") if name]
    if unknown := [name for name in (*only, *options.names) if name not in (*known, "all", "results")]:
        parser.error(f"expected names among all, results, {', '.join(known)}, got {unknown[0]}")
    if options.jobs < 1:
        parser.error("--jobs: expected at least 1")
    names = list(known) if "all" in options.names or (only and not options.names) else options.names
    chosen = [known[name] for name in names if name in known and (not only or name in only)]
    if options.list:
        show(chosen or list(known.values()))
        return 0
    if not options.names and not only:
        parser.error("expected all, results, or names of studies (--list shows them)")
    with ThreadPoolExecutor(options.jobs) as pool:
        complaints = [complaint for complaint in pool.map(make, chosen) if complaint]
    if "results" in options.names:
        for study in known.values():
            take(study)
    PAGE.write_text(page(records()), encoding="utf-8")
    print(f"{len(chosen) - len(complaints)} of {len(chosen)} studies made; {PAGE.relative_to(ROOT)}")
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    return 1 if complaints else 0


def show(chosen: Sequence[Study]) -> None:
    """What takes how long: CPU minutes of the last run, or what the study says of itself."""
    for study in chosen:
        record = FOLDER / f"{study.name}.json"
        cpu = json.loads(record.read_text(encoding="utf-8"))["cpu_s"] if record.exists() else None
        about = f"about {study.minutes:g}" if study.minutes else "?"
        minutes = about if cpu is None else f"{cpu / 60:.1f}"
        needs = ", ".join((*study.inputs, *((f"the extra `{study.extra}`",) if study.extra else ())))
        sweep = f"; longer: kant sweep benchmarks/studies/sweeps/{study.sweep}" if study.sweep else ""
        print(
            f"{study.name:20} {minutes:>9} CPU min  {', '.join(study.pages)}{sweep}"
            + (f"; needs {needs}" if needs else "")
        )


def make(study: Study) -> str:
    """Run a study and take its numbers. Returns what is wrong, or nothing."""
    if wrong := lacks(study):
        return f"{study.name}: left out: {wrong}"
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"{study.name}.log"
    began = time.monotonic()
    words = [sys.executable, "-m", f"benchmarks.studies.{study.name}", *shlex.split(study.arguments)]
    with log.open("wb") as out:
        process = subprocess.Popen(words, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    cpu = usage.ru_utime + usage.ru_stime
    print(f"{study.name}: {cpu / 60:.1f} CPU minutes, {(time.monotonic() - began) / 60:.1f} by the clock", flush=True)
    if process.returncode:
        return f"{study.name}: failed with exit code {process.returncode}: {log.relative_to(ROOT)}"
    try:
        take(study, cpu)
    except (LookupError, OSError) as error:
        return f"{study.name}: its page has not what published.toml says: {error}"
    return ""


def lacks(study: Study) -> str:
    """What a study needs and is not there."""
    pinned = tomllib.loads((HERE / "studies.toml").read_text(encoding="utf-8"))["inputs"]
    for name in study.inputs:
        path = DATA / name
        if not path.is_file():
            return f"no {name} in {DATA}"
        if hashlib.sha256(path.read_bytes()).hexdigest() != pinned[name]:
            return f"{path} is not the file that was pinned"
    if study.extra and importlib.util.find_spec(EXTRAS[study.extra]) is None:
        return f"the extra `{study.extra}` ({install_command(study.extra)})"
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
