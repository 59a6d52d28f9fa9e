"""What the recorders of vLLM and SGLang share: the latency of a step, and the prompts. Nothing of Kant is imported."""

from __future__ import annotations

from typing import Any

LONGEST, OUTPUT_TOKEN, STOP_TOKEN = 8192, 5, 7
BANDWIDTH, PEAK = 0.8 * 2.039e12, 0.5 * 312e12
CONSTANTS = {
    "F": 10.47,
    "S": 0.0668,
    "C": 6.98,
    "K": 131072 / BANDWIDTH * 1e3,
    "Q": 4 * 4096 * 32 / PEAK * 1e3,
    "O": 2.0,
}
TINY = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 1024,
    "max_position_embeddings": LONGEST, "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16", "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
"""A model that is never run: the scheduler only wants to know its shape."""


def step_s(tokens: int, decode: int, chunks: float) -> float:
    """The latency of a step, in the order of operations that the recording promises."""
    c = CONSTANTS
    return (max(c["F"], c["S"] * tokens + c["C"]) + decode * c["K"] + chunks * c["Q"] + c["O"]) / 1e3


def prompt_tokens(row: dict[str, Any]) -> list[int]:
    """Requests of a group share their first tokens; the rest is the request's own."""
    group, shared = row["group"], row["prefix"] if row["group"] >= 0 else 0
    theirs = [(group * 7919 + j * 31) % 997 + 3 for j in range(shared)]
    return theirs + [(row["id"] * 104729 + j * 17 + 5) % 997 + 3 for j in range(row["prompt"] - shared)]
