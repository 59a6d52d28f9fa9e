"""Reads requests from files: traces of Azure, Mooncake and BurstGPT, ServeGen's client rates, and Kant's own CSV."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import polars as pl

from kant.files import read_bytes
from kant.model.errors import InputError
from kant.serving.columns import Table
from kant.serving.generate import conversation_lengths
from kant.serving.requests import Requests

LONGEST = 1 << 24
"""The maximum number of tokens of a request. Longer requests are treated as errors."""

MOONCAKE_GRAIN = 512
SERVEGEN_WINDOW_S = 600.0
SERVEGEN_REQUESTS = 10_000


class MooncakeLine(msgspec.Struct):
    """A line of Mooncake's trace (Qin et al., FAST'25). The hashes identify blocks of 512 tokens of the prompt.

    Lines of a router's record have smaller blocks, and more fields (`kant.gateway.record`), such as `time`.
    """

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]
    block_size: int = MOONCAKE_GRAIN
    time: str = ""
    status: int = 200
    program: int = -1
    model: str = ""
    router: str = ""
    policy: str = ""
    backend: int | None = None
    first_s: float | None = None
    shadow: str = ""
    shadow_backend: int | None = None
    shadow_agrees: bool = False
    shadow_later_s: float = 0.0


def read_requests(path: Path, form: str | None = None, seed: int = 0, count: int | None = None) -> Requests:
    """Read the requests of a file, or the first `count` of them. Raises InputError with the line of an error.

    If `form` is None, the format is detected. Only the format `servegen` uses the seed.
    """
    content = read_bytes(path)
    if form is None:
        form = _detect(path, content)
    if form not in FORMATS:
        raise InputError("--format", f"one of {', '.join(FORMATS)}", form)
    if count is not None and count < 1:
        raise InputError("--requests", "a number of requests from 1 on", count)
    found = FORMATS[form](path, content, seed, count)
    return found if count is None else found.first(count)


def _detect(path: Path, content: bytes) -> str:
    head = content[:4096].decode("utf-8-sig", "replace").lstrip().split("\n", 1)[0].strip()
    if head.startswith("{"):
        return "mooncake"
    names = {name.strip(' "') for name in head.split(",")}
    for form, wanted in (
        ("azure", {"in_tok", "out_tok"}),
        ("azure", {"ContextTokens", "GeneratedTokens"}),
        ("burstgpt", {"Timestamp", "Request tokens", "Response tokens"}),
        ("servegen", {"client", "window_s", "dist"}),
        ("csv", {"arrival_s", "prompt", "output"}),
    ):
        if wanted <= names:
            return form
    raise InputError(str(path), f"requests in one of the formats {', '.join(FORMATS)}", head)


def _table(path: Path, content: bytes, columns: dict[str, pl.DataType | type[pl.DataType]]) -> pl.DataFrame:
    """Read a CSV file with at least these columns, of these types, without empty values."""
    try:
        table = pl.read_csv(io.BytesIO(content), infer_schema=False)
    except (pl.exceptions.PolarsError, UnicodeDecodeError):
        raise InputError(str(path), "a CSV file with a header") from None
    table = table.rename({name: name.strip() for name in table.columns})
    if missing := [name for name in columns if name not in table.columns]:
        raise InputError(f"{path}: header", f"the columns {', '.join(columns)}", ", ".join(missing) + " missing")
    if len(table) == 0:
        raise InputError(str(path), "at least one request")
    for name, kind in columns.items():
        cast = table[name].str.strip_chars().cast(kind, strict=False)
        bad = cast.is_null() if kind != pl.Float64 else cast.is_null() | ~cast.is_finite().fill_null(False)
        if bad.any():
            at = int(bad.arg_max() or 0)
            what = {pl.Int64: "a whole number", pl.Float64: "a number"}.get(kind, "a text")  # type: ignore[arg-type]
            raise InputError(f"{path}:{at + 2}: {name}", what, table[name][at])
        table = table.with_columns(cast.alias(name))
    return table


def _checked(requests: Requests) -> Requests:
    """Check and return requests; raises InputError if a length is out of range or they are not in order of arrival."""
    for name, least in (("prompt", 1), ("output", 1), ("arrival", 0)):
        values = getattr(requests, name)
        bad = (values < least) | (values > (LONGEST if name != "arrival" else 1e12))
        if bad.any():
            i = int(np.argmax(bad))
            top = f" to {LONGEST}" if name != "arrival" else " on"
            raise InputError(f"{requests.place(i)}: {name}", f"a number from {least}{top}", values[i].item())
    if (np.diff(requests.arrival) < 0).any():
        i = int(np.argmax(np.diff(requests.arrival) < 0)) + 1
        raise InputError(f"{requests.place(i)}: arrival", "requests in order of arrival", float(requests.arrival[i]))
    return requests


def _lines(path: Path, count: int, first: int = 2) -> tuple[str, ...]:
    return tuple(f"{path}:{first + i}" for i in range(count))


def read_azure(path: Path, content: bytes, seed: int, count: int | None) -> Requests:
    """Read Azure's traces of LLM inference (Patel et al., ISCA'24): arrival, prompt and output lengths.

    Accepts the published columns and the shortened `t_ms, in_tok, out_tok`. An output of 0 tokens counts as one token.
    """
    if b"ContextTokens" in content[:200]:
        table = _table(path, content, {"TIMESTAMP": pl.String, "ContextTokens": pl.Int64, "GeneratedTokens": pl.Int64})
        try:
            stamp = table["TIMESTAMP"].str.slice(0, 26).str.to_datetime(strict=False)
        except pl.exceptions.ComputeError:  # Polars infers the format from the first one
            raise InputError(f"{path}:2: TIMESTAMP", "a date and time", table["TIMESTAMP"][0]) from None
        if stamp.is_null().any():
            at = int(stamp.is_null().arg_max() or 0)
            raise InputError(f"{path}:{at + 2}: TIMESTAMP", "a date and time", table["TIMESTAMP"][at])
        table = table.sort(stamp, maintain_order=True)
        stamp = stamp.sort()
        arrival = (stamp - stamp[0]).dt.total_microseconds().to_numpy() / 1e6
        prompt, output = table["ContextTokens"], table["GeneratedTokens"]
    else:
        table = _table(path, content, {"t_ms": pl.Float64, "in_tok": pl.Int64, "out_tok": pl.Int64})
        arrival = table["t_ms"].to_numpy() / 1e3
        prompt, output = table["in_tok"], table["out_tok"]
    lengths = output.to_numpy()
    return _checked(
        Requests(
            path.name, arrival, prompt.to_numpy(), np.where(lengths == 0, 1, lengths), where=_lines(path, len(table))
        )
    )


def mooncake_lines(path: Path, content: bytes) -> tuple[list[MooncakeLine], list[str], int]:
    """Read the lines of a Mooncake trace. Returns the lines, their places, and the number of lines left out. Lines of a
    router's record are sorted by arrival; those of requests that no engine served are left out. Status 499 is a client
    that disconnected. Raises InputError.
    """
    found: list[tuple[MooncakeLine, str]] = []
    left_out = 0
    decoder = msgspec.json.Decoder(MooncakeLine)
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            row = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InputError(f"{path}:{number}", f"a request of Mooncake's trace ({error})") from None
        if row.time and (row.status not in (200, 499) or row.backend is None or row.input_length < 1):
            left_out += 1
            continue
        if row.block_size < 1 or (found and row.block_size != found[0][0].block_size):
            raise InputError(f"{path}:{number}: block_size", "the same number of tokens on each line", row.block_size)
        if len(row.hash_ids) * row.block_size < row.input_length:
            need = -(-row.input_length // row.block_size)
            said = f"{need}, one for each {row.block_size} tokens"
            raise InputError(f"{path}:{number}: hash_ids", said, len(row.hash_ids))
        if any(not 0 <= number < 1 << 48 for number in row.hash_ids):
            raise InputError(f"{path}:{number}: hash_ids", "numbers from 0 to 2^48")
        if max(abs(row.input_length), abs(row.output_length)) > LONGEST:
            raise InputError(f"{path}:{number}", f"lengths of at most {LONGEST} tokens")
        found.append((row, f"{path}:{number}"))
    if any(row.time for row, _ in found):
        found.sort(key=lambda pair: pair[0].timestamp)
    return [row for row, _ in found], [place for _, place in found], left_out


def mooncake_requests(path: Path, rows: list[MooncakeLine], places: list[str]) -> Requests:
    """Convert lines to requests; an output of 0 tokens counts as one token."""
    return _checked(
        Requests(
            path.name,
            np.array([row.timestamp / 1e3 for row in rows]),
            np.array([row.input_length for row in rows], dtype=np.int64),
            np.array([row.output_length or 1 for row in rows], dtype=np.int64),
            program=np.array([row.program for row in rows], dtype=np.int64),
            hashes=tuple(np.array(row.hash_ids, dtype=np.int64) for row in rows),
            grain=rows[0].block_size if rows else MOONCAKE_GRAIN,
            where=tuple(places),
        )
    )


def read_mooncake(path: Path, content: bytes, seed: int, count: int | None) -> Requests:
    """Read Mooncake's traces (Qin et al., FAST'25): lengths, and hashes of prompt blocks; and records of routers."""
    rows, places, _ = mooncake_lines(path, content)
    return mooncake_requests(path, rows[:count], places[:count])


def read_burstgpt(path: Path, content: bytes, seed: int, count: int | None) -> Requests:
    """Read BurstGPT (Wang et al., "BurstGPT: A Real-world Workload Dataset to Optimize LLM Serving Systems", KDD'25).

    Of the columns `Timestamp` (seconds), `Model`, `Request tokens`, `Response tokens`, `Total tokens` and `Log Type`,
    the first and the token counts are read; requests of one `Session ID`, which later files have, are one program.
    Failed requests, which have no response, are left out.
    """
    names = content[:4096].decode("utf-8-sig", "replace").split("\n", 1)[0]
    kinds: dict[str, pl.DataType | type[pl.DataType]] = {
        "Timestamp": pl.Float64, "Request tokens": pl.Int64, "Response tokens": pl.Int64,
    }  # fmt: skip
    if "Session ID" in names:
        kinds["Session ID"] = pl.String
    table = _table(path, content, kinds).with_row_index("line", 2).sort("Timestamp", maintain_order=True)
    table = table.filter((pl.col("Response tokens") != 0) & (pl.col("Request tokens") != 0))
    if len(table) == 0:
        raise InputError(str(path), "at least one request with a response")
    arrival = table["Timestamp"].to_numpy()
    sessions = table["Session ID"].rank("dense").to_numpy() if "Session ID" in kinds else np.full(len(table), -1)
    return _checked(
        Requests(
            path.name,
            arrival - arrival[0],
            table["Request tokens"].to_numpy(),
            table["Response tokens"].to_numpy(),
            program=sessions.astype(np.int64),
            where=tuple(f"{path}:{line}" for line in table["line"]),
        )
    )


def read_servegen(path: Path, content: bytes, seed: int, count: int | None) -> Requests:
    """Draw requests from ServeGen's client rates (Xiang et al., NSDI'26), for the first model in the file.

    Each client draws the gaps between its arrivals from the Gamma or Weibull distribution of each window of ten
    minutes. The rates have no lengths: these are drawn as in `kant serve generate conversation`. Only the first `count`
    requests (default 10,000) are drawn.
    """
    table = _table(
        path, content,
        {"model": pl.String, "client": pl.String, "window_s": pl.Float64, "rate": pl.Float64, "dist": pl.String,
         "p1": pl.Float64, "p2": pl.Float64},
    )  # fmt: skip
    for name, bad in (
        ("dist", ~table["dist"].is_in(["Gamma", "Weibull"])),
        ("p1", table["p1"] <= 0),
        ("p2", table["p2"] <= 0),
        ("rate", table["rate"] <= 0),
    ):
        if bad.any():
            at = int(bad.arg_max() or 0)
            what = "Gamma or Weibull" if name == "dist" else "a number above 0"
            raise InputError(f"{path}:{at + 2}: {name}", what, table[name][at])
    model = table["model"][0]
    wanted = count or SERVEGEN_REQUESTS
    draw = np.random.Generator(np.random.PCG64(seed))
    arrivals: list[Table] = []
    clients: list[Table] = []
    drawn = 0
    rows = table.filter(pl.col("model") == model).sort("window_s", "client", maintain_order=True)
    for (window,), group in rows.group_by(["window_s"], maintain_order=True):
        for client, rate, dist, p1, p2 in group.select("client", "rate", "dist", "p1", "p2").iter_rows():
            # A single client needs at most as many as are wanted in total.
            gaps = min(int(2 * rate * SERVEGEN_WINDOW_S) + 64, 4 * wanted + 64)
            sample = draw.gamma(p1, p2, gaps) if dist == "Gamma" else p2 * draw.weibull(p1, gaps)
            times = np.cumsum(sample)
            times = times[times < SERVEGEN_WINDOW_S] + window
            arrivals.append(times)
            clients.append(np.full(len(times), int(client) if client.isdigit() else 0))
            drawn += len(times)
        if drawn >= wanted:
            break
    arrival = np.concatenate(arrivals)
    order = np.argsort(arrival, kind="stable")[:wanted]
    if len(order) == 0:
        raise InputError(str(path), "a client that sends a request in its first window")
    prompt, output = conversation_lengths(draw, len(order))
    program = np.concatenate(clients)[order]
    return _checked(
        Requests(f"{path.name}: {model}", arrival[order] - arrival[order[0]], prompt, output, program=program)
    )


def read_csv(path: Path, content: bytes, seed: int, count: int | None) -> Requests:
    """Read Kant's table: arrival_s, prompt, output, and optionally priority, predicted, program, group and prefix."""
    header = content[:4096].decode("utf-8-sig", "replace").split("\n", 1)[0]
    names = {name.strip(' "\r') for name in header.split(",")}
    kinds: dict[str, pl.DataType | type[pl.DataType]] = {
        "arrival_s": pl.Float64, "prompt": pl.Int64, "output": pl.Int64, "priority": pl.Float64,
        "predicted": pl.Float64, "program": pl.Int64, "group": pl.Int64, "prefix": pl.Int64,
    }  # fmt: skip
    required = ("arrival_s", "prompt", "output")
    table = _table(path, content, {name: kind for name, kind in kinds.items() if name in required or name in names})
    columns = {name: table[name].to_numpy() for name in kinds if name in table.columns}
    arrival = columns.pop("arrival_s")
    requests = _checked(Requests(path.name, arrival, where=_lines(path, len(table)), **columns))  # type: ignore[arg-type]
    if ((requests.prefix < 0) | (requests.prefix > requests.prompt)).any():
        i = int(np.argmax((requests.prefix < 0) | (requests.prefix > requests.prompt)))
        raise InputError(f"{requests.place(i)}: prefix", "a number from 0 to the prompt", int(requests.prefix[i]))
    if (np.abs(requests.group) >= 1 << 40).any():
        raise InputError(f"{path}: group", "numbers below 2^40")
    return requests


Reader = Callable[[Path, bytes, int, int | None], Requests]

FORMATS: dict[str, Reader] = {
    "azure": read_azure,
    "mooncake": read_mooncake,
    "burstgpt": read_burstgpt,
    "servegen": read_servegen,
    "csv": read_csv,
}


def write_requests(requests: Requests, path: Path) -> None:
    """Write requests as Kant's own table; shared hashes are not stored."""
    columns = {
        "arrival_s": requests.arrival.round(6),
        "prompt": requests.prompt,
        "output": requests.output,
        "priority": requests.priority,
        "program": requests.program,
        "group": requests.group,
        "prefix": requests.prefix,
    }
    try:
        pl.DataFrame(columns).write_csv(path)
    except OSError as error:
        raise InputError(f"--out {path}", "a file that can be written", error.strerror) from None
