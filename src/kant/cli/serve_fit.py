"""`kant serve fit`: fits an engine's latency to measured steps, and checks it on others."""

from __future__ import annotations

import asyncio
import datetime
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from kant.cli.inputs import Json, whole
from kant.cli.output import print_json
from kant.cli.show import console
from kant.model.errors import InputError
from kant.serving.shapes import shape_of
from kant.serving.torch_steps import about, grid, load, measured

if TYPE_CHECKING:
    from kant.serving.columns import Times
    from kant.serving.shapes import Shape

Source = tuple["Times", str, dict[str, str], int]
"""Steps, their model, how and on what they were measured (see `Check`), and the number of tokens whose KV fits."""


def fit(
    steps: Annotated[
        Path | None, Parameter(help="Measured steps: a CSV file with the columns tokens, decode, chunks and ms.")
    ] = None,
    /,
    *,
    torch: Annotated[
        bool, Parameter(help="Measure the model's layers as kernels on this machine's GPU, with PyTorch.", negative="")
    ] = False,
    url: Annotated[
        str | None, Parameter(help="Measure an idle engine that answers OpenAI's API, such as http://gpu1:8000.")
    ] = None,
    model: Annotated[
        str, Parameter(help="A model (see `kant serve policies`), `-fp8` after its name, or its config.json.")
    ] = "llama-3-8b",
    gpu: Annotated[str, Parameter(help="With steps or --url: the GPU that was measured, for the record.")] = "",
    max_tokens: Annotated[int, Parameter(help="The largest number of tokens in a step.", converter=whole)] = 8192,
    seconds: Annotated[float, Parameter(help="The time limit of the measurement.")] = 120.0,
    out: Annotated[Path, Parameter(help="The file to write; `--latency` of the other verbs takes it.")],
    json: Json = False,
) -> None:
    """Fit the latency of an engine to two thirds of the measured steps, check it on the rest, and write it.

    The steps are those of a file, of a model's layers on this machine's GPU (--torch), or of an engine (--url).
    """
    from kant.serving.fit import Check, LatencyFile, checked, write_latency

    if (steps is not None) + torch + (url is not None) != 1:
        raise InputError("kant serve fit", "exactly one of a file of steps, --torch and --url")
    if not seconds > 0:
        raise InputError("--seconds", "a number above 0", seconds)
    shape = shape_of(model)
    if torch:
        measured, name, on, kv_tokens = _kernels(shape, model, max_tokens, seconds)
    elif url is not None:
        measured, name, on, kv_tokens = _engine(url.rstrip("/"), gpu, max_tokens, seconds)
    else:
        measured, name, on, kv_tokens = _file(steps, model, gpu)
    latency, held, median, p90 = checked(measured, shape.missed, shape.kv_bytes)
    if torch:
        from kant.serving.latency import MODERN_OVERHEAD_MS

        latency = replace(latency, overhead=MODERN_OVERHEAD_MS)  # of the engine's code, which was not measured
    check = Check(date=datetime.date.today().isoformat(), steps=held, error_p50=median, error_p90=p90, **on)
    found = LatencyFile(name, 1, latency, kv_tokens, check, [tuple(row) for row in measured.tolist()])
    write_latency(found, out)
    if json:
        print_json(found)
        return
    console.print(f"{name}: {len(measured)} steps, {check.sentence}", soft_wrap=True, markup=False)
    if torch:
        console.print(f"{MODERN_OVERHEAD_MS:g} ms of each step, for the engine's own program, are an estimate")
    console.print(f"written to {out}", soft_wrap=True, markup=False)


def _file(path: Path | None, model: str, gpu: str) -> Source:
    from kant.serving.fit import read_steps

    assert path is not None, "one of the three"
    return read_steps(path), model, {"how": f"the steps of {path.name}", "gpu": gpu, "software": ""}, 0


def _kernels(shape: Shape, model: str, max_tokens: int, seconds: float) -> Source:
    from kant.serving.fit import rows_of

    on, memory_gb = about(load())
    kv_tokens = int(max(0.9 * memory_gb - shape.weight_gb - 1.5, 0) * 1e9 / shape.kv_bytes)
    steps = grid(max_tokens, kv_tokens)
    return rows_of([(*step.row(), ms) for step, ms in measured(shape, steps, seconds)]), model, on, kv_tokens


def _engine(url: str, gpu: str, max_tokens: int, seconds: float) -> Source:
    from kant.gateway.engine_steps import measured
    from kant.serving.fit import rows_of

    rows, model, kv_tokens = asyncio.run(measured(url, max_tokens, seconds))
    return rows_of(rows), model, {"how": "an engine by its API", "gpu": gpu, "software": ""}, kv_tokens
