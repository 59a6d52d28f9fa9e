"""A Training describes the model of a job and its parallelism over its GPUs."""

from __future__ import annotations

from msgspec import Struct


class Training(Struct, frozen=True, omit_defaults=True):
    """A transformer and its parallelism. The remaining GPUs train replicas of it.

    It has `layers` layers of `width`; `hidden` is the width inside an expert (or inside the one network of a dense
    layer), which has `gemms` matrices. Attention has `heads` heads, of which `kv_heads` have keys and values of their
    own. Every `moe_every`-th layer has `experts`, and each token goes to `top_k` of them; `capacity_permille`
    thousandths of the mean load are sent, so that no expert's buffer is too small. A micro-batch is `sequences` of
    `length` tokens, for all GPUs that share a layer; a step has `micro_batches` of them. `tensor` GPUs share each layer
    and each expert (tensor and expert-sharding parallelism), `expert` such groups share out the experts, and `pipeline`
    stages share out the layers.
    """

    layers: int
    width: int
    hidden: int
    length: int = 4096
    sequences: int = 1
    micro_batches: int = 1
    heads: int = 32
    kv_heads: int = 0  # 0: as many as heads
    gemms: int = 3
    experts: int = 1
    top_k: int = 1
    capacity_permille: int = 1000
    moe_every: int = 1
    tensor: int = 1
    expert: int = 1
    pipeline: int = 1
