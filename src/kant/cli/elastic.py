"""`kant elastic`: preparation of elastic training jobs."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from kant.cli.inputs import Json
from kant.cli.output import Reply
from kant.model.errors import InputError
from kant.toml_file import read_text

if TYPE_CHECKING:
    from kant.metrics.rate_law import FittedLaw, Losses

elastic_app = App(name="elastic", help="Training jobs that can shrink, grow and end early.", help_format="plaintext")
COLUMNS = ("batch", "tokens", "rate", "loss")


@elastic_app.command
def law(
    rows: Annotated[Path, Parameter(help="A CSV file with the columns batch, tokens, rate and loss: one run per row.")],
    /,
    *,
    tail: Annotated[float, Parameter(help="The last part of the tokens, in which the rate of a run fell.")] = 0.1,
    json: Json = False,
) -> int:
    """Fit the law of the learning rate to measured runs, and print it in the form used in an elastic job's contract."""
    from kant.metrics.rate_law import cells_of, fit, regret

    if not 0 <= tail < 1:
        raise InputError("--tail", "a number from 0 up to 1", tail)
    losses = cells_of(_rows(rows))
    try:
        found = fit(losses, tail)
    except InputError as error:
        raise InputError(str(rows), error.expected, f"{len(losses)} cells") from None
    middle = sorted(losses)[len(losses) // 2]
    kinds = {
        f"one rate, tuned at {middle[0]:,} and {middle[1]:,.0f}": dict.fromkeys(losses, found.best[middle][0]),
        "this law": {cell: found.law.rate(cell[0], cell[1] * (1 - tail)) for cell in losses},
    }
    regrets = {name: list(regret(losses, found, rates).values()) for name, rates in kinds.items()}
    answer = {
        "amplitude": found.law.amplitude,
        "batch_power": found.law.batch_power,
        "token_power": found.law.token_power,
        "peak": found.law.peak,
        "batch_power_half": found.batch_half,
        "token_power_half": found.token_half,
        "best": [{"batch": b, "tokens": t, "rate": r, "loss": at} for (b, t), (r, at) in found.best.items()],
        "at_edge": [{"batch": batch, "tokens": tokens} for batch, tokens in found.at_edge],
        "regret": {name: {"mean": sum(each) / len(each), "max": max(each)} for name, each in regrets.items()},
    }
    return Reply(answer, lambda: _show(losses, found, answer)).print(json)


def _rows(path: Path) -> list[tuple[int, float, float, float]]:
    """Read the measured runs of a file. Raises InputError that names the line."""
    reader = csv.DictReader(read_text(path).splitlines())
    if tuple(sorted(reader.fieldnames or ())) != tuple(sorted(COLUMNS)):
        raise InputError(str(path), f"a first line with the columns {', '.join(COLUMNS)}", reader.fieldnames)
    found = []
    for number, row in enumerate(reader, start=2):
        try:
            batch, tokens, rate, loss = int(row["batch"]), float(row["tokens"]), float(row["rate"]), float(row["loss"])
        except (TypeError, ValueError):
            raise InputError(
                f"{path}, line {number}", "four numbers, the batch a whole one", list(row.values())
            ) from None
        if not (batch > 0 and tokens > 0 and rate > 0 and all(map(math.isfinite, (tokens, rate, loss)))):
            raise InputError(f"{path}, line {number}", "numbers above 0", list(row.values()))
        found.append((batch, tokens, rate, loss))
    return found


def _show(losses: Losses, found: FittedLaw, answer: dict[str, Any]) -> None:
    law = found.law
    print(f"{len(losses):,} cells of batch and tokens, {sum(map(len, losses.values())):,} rates in them")
    print(f"batch_power {law.batch_power:.2f} ± {found.batch_half:.2f}, "
          f"token_power {law.token_power:.2f} ± {found.token_half:.2f} (95 %)")  # fmt: skip
    for batch, tokens in found.at_edge:
        print(f"batch {batch:,}, {tokens:,.0f} tokens: the best rate is the last one measured; measure higher ones")
    for name, each in answer["regret"].items():
        print(f"{name}: above the best loss by {each['mean']:.4f} on average, {each['max']:.4f} at most")
    print("\n[rate]")
    for field in ("amplitude", "batch_power", "token_power", "peak"):
        print(f"{field} = {getattr(law, field):.6g}")
