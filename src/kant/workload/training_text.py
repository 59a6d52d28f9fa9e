"""The description of a job's training: a TOML file, or a few words in a cell of a trace.

A file has the fields of `Training`. `model` names one of MODELS; that model's fields can then be omitted. A cell has
the model and fields as words: `mixtral-8x7b tensor=8 expert=8`.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from kant.model.errors import InputError
from kant.model.training import Training
from kant.toml_file import parse_tree

MODELS = {
    # arXiv 2407.21783, table 3
    "llama-3-8b": Training(32, 4096, 14_336, 8192, heads=32, kv_heads=8),
    "llama-3-70b": Training(80, 8192, 28_672, 8192, heads=64, kv_heads=8),
    "llama-3-405b": Training(126, 16_384, 53_248, 8192, heads=128, kv_heads=8),
    # arXiv 2401.04088, table 1
    "mixtral-8x7b": Training(32, 4096, 14_336, 4096, heads=32, kv_heads=8, experts=8, top_k=2),
}
"""Models whose authors have published the dimensions."""

_NEEDED = ("layers", "width", "hidden")
_MOST = {"layers": 10_000, "tensor": 100_000, "expert": 100_000, "pipeline": 10_000, "micro_batches": 100_000}
_LARGEST = 10_000_000


def read_training(path: Path) -> Training:
    """Return the training that a TOML file describes. Raises InputError, which names the field, and no other error."""
    from kant.files import open_text  # most trainings are words, not files

    with open_text(path) as stream:
        text = stream.read()
    return training_of(str(path), parse_tree(str(path), text))


def parse_training(where: str, words: str) -> Training | None:
    """Return the training that the words of a cell describe; None for an empty cell. Raises InputError."""
    if not words.strip():
        return None
    values: dict[str, object] = {}
    for word in words.split():
        name, given, value = word.partition("=")
        if not given:
            name, value = "model", word
        if name in values:
            raise InputError(where, f"{name} once", words)
        values[name] = int(value) if value.isdecimal() and len(value) < 19 else value
    return training_of(where, values)


def training_text(training: Training | None) -> str:
    """Return the words of a cell that describe a training; empty for None."""
    if training is None:
        return ""
    return " ".join(f"{name}={value}" for name, value in msgspec.structs.asdict(training).items())


def training_of(where: str, values: dict[str, object]) -> Training:
    """Return the training with these fields, after checking that they are consistent."""
    named = values.get("model")
    if named is not None and (not isinstance(named, str) or named not in MODELS):
        raise InputError(f"{where}, field model", f"one of {', '.join(MODELS)}", named)
    fields = Training.__struct_fields__
    chosen = {} if named is None else msgspec.structs.asdict(MODELS[str(named)])
    for name, value in values.items():
        if name == "model":
            continue
        if name not in fields:
            raise InputError(where, f"fields among model, {', '.join(fields)}", name)
        low = 0 if name == "kv_heads" else 1
        high = _MOST.get(name, _LARGEST)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise InputError(f"{where}, field {name}", f"a whole number from {low} to {high:,}", value)
        chosen[name] = value
    for name in _NEEDED:
        if name not in chosen:
            raise InputError(where, f"a model, or the field {name}")
    training = Training(**chosen)
    for name, fits, expected in (
        ("top_k", training.top_k <= training.experts, f"at most its {training.experts} experts"),
        ("expert", training.experts % training.expert == 0, f"a divisor of its {training.experts} experts"),
        ("kv_heads", training.kv_heads <= training.heads, f"at most its {training.heads} heads"),
        ("pipeline", training.pipeline <= training.layers, f"at most its {training.layers} layers"),
        ("moe_every", training.moe_every <= training.layers, f"at most its {training.layers} layers"),
    ):
        if not fits:
            raise InputError(f"{where}, field {name}", expected, getattr(training, name))
    return training
