"""The shapes of models, which determine the cost of their weights, KV and attention."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kant.model.errors import InputError

HALF = 2
"""Bytes of a number in half precision."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A transformer with gated feed-forward layers. With `experts` of width `ffn` in each layer, a token uses `active`
    of them. 0 experts: each layer is one feed-forward layer for all tokens."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    experts: int = 0
    active: int = 0
    head: int = 128
    weight_bytes: int = HALF
    """Bytes of a weight of the linear layers: 1 in FP8."""

    @property
    def width(self) -> int:
        """The width of all heads together."""
        return self.heads * self.head

    @property
    def kv_bytes(self) -> int:
        """KV bytes of a token, in half precision."""
        return 2 * self.layers * self.kv_heads * self.head * HALF

    @property
    def missed(self) -> float:
        """The probability that a token does not use a given expert, if all are equally likely; 0 without experts."""
        return 1 - self.active / self.experts if self.experts else 0.0

    @property
    def expert_weights(self) -> int:
        """The weights of all experts; 0 if there are none."""
        return 3 * self.layers * self.hidden * self.ffn * self.experts

    @property
    def dense_weights(self) -> int:
        """The weights of the layers that every token uses."""
        attention = self.hidden * self.head * 2 * (self.heads + self.kv_heads)
        return self.layers * (attention + (self.hidden * self.experts or 3 * self.hidden * self.ffn))

    @property
    def weight_gb(self) -> float:
        """The size of the weights in GB. Embeddings and the last layer are in half precision."""
        linear = (self.dense_weights + self.expert_weights) * self.weight_bytes
        return round((linear + 2 * self.vocab * self.hidden * HALF) / 1e9, 1)


SHAPES = {
    "llama-2-7b": Shape(4096, 32, 32, 32, 11008, 32000),
    "llama-2-13b": Shape(5120, 40, 40, 40, 13824, 32000),
    "llama-3-8b": Shape(4096, 32, 32, 8, 14336, 128256),
    "codellama-34b": Shape(8192, 48, 64, 8, 22016, 32000),
    "llama-2-70b": Shape(8192, 80, 64, 8, 28672, 32000),
    "llama-3-70b": Shape(8192, 80, 64, 8, 28672, 128256),
    "mixtral-8x7b": Shape(4096, 32, 32, 8, 14336, 32000, 8, 2),
    "qwen3-30b-a3b": Shape(2048, 48, 32, 4, 768, 151936, 128, 8),
}
"""The shapes of models by name, from the published `config.json` of each."""

FP8 = "-fp8"
"""The suffix of models whose linear layers are in FP8."""

FIELDS = {
    "hidden": ("hidden_size",),
    "layers": ("num_hidden_layers",),
    "heads": ("num_attention_heads",),
    "kv_heads": ("num_key_value_heads", "num_attention_heads"),
    "ffn": ("moe_intermediate_size", "intermediate_size"),
    "vocab": ("vocab_size",),
    "experts": ("num_experts", "num_local_experts", "n_routed_experts"),
    "active": ("num_experts_per_tok",),
    "head": ("head_dim",),
}
"""The fields of a Hugging Face `config.json`. The first that exists is used."""


def shape_of(name: str) -> Shape:
    """Return the shape of a model by its name, or from a `config.json`. Raises InputError."""
    if name.removesuffix(FP8) in SHAPES:
        found = SHAPES[name.removesuffix(FP8)]
        return replace(found, weight_bytes=1) if name.endswith(FP8) else found
    if not name.endswith(".json"):
        known = ", ".join(sorted(SHAPES))
        raise InputError("--model", f"one of {known}, any of them with {FP8}, or a config.json", name)
    try:
        fields = json.loads(Path(name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(name, f"the config.json of a model ({error})") from None
    if not isinstance(fields, dict):
        raise InputError(name, "the config.json of a model", type(fields).__name__)
    given = {field: _first(name, fields, keys) for field, keys in FIELDS.items()}
    for field in ("hidden", "layers", "heads", "kv_heads", "ffn", "vocab"):
        if given[field] < 1:
            raise InputError(name, f"{FIELDS[field][-1]}, a whole number from 1 on", given[field])
    if given["experts"] and not 1 <= given["active"] <= given["experts"]:
        raise InputError(name, f"num_experts_per_tok from 1 to {given['experts']}", given["active"])
    given["head"] = given["head"] or given["hidden"] // given["heads"]
    quantization = fields.get("quantization_config")
    narrow = isinstance(quantization, dict) and quantization.get("quant_method") == "fp8"
    return Shape(**given, weight_bytes=1 if narrow else HALF)


def _first(name: str, fields: dict[str, Any], keys: tuple[str, ...]) -> int:
    value = next((fields[key] for key in keys if fields.get(key) is not None), 0)
    if not isinstance(value, int) or value < 0:
        raise InputError(name, f"{keys[0]}, a whole number", value)
    return value
