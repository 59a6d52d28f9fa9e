"""The layers that are measured are a transformer: against its formulas written out, on the CPU."""

from __future__ import annotations

import pytest

from kant.serving.shapes import Shape
from kant.serving.torch_steps import Layers, StepToMeasure, grid

torch = pytest.importorskip("torch", reason="no PyTorch")
DENSE = Shape(256, 2, 4, 2, 512, 1000, head=64)
EXPERTS = Shape(256, 2, 4, 2, 128, 1000, 16, 4, head=64)


@pytest.mark.parametrize("shape", [DENSE, EXPERTS])
@pytest.mark.parametrize(
    "step",
    [
        StepToMeasure(16),
        StepToMeasure(32, 512),
        StepToMeasure(0, 0, 4, 512),
        StepToMeasure(0, 0, 3, 300),
        StepToMeasure(16, 0, 4, 128),
    ],
)
def test_a_step_answers_each_request(shape: Shape, step: StepToMeasure) -> None:
    with torch.inference_mode():
        answers = Layers(torch, shape, "cpu", pool=1 << 20).prepared(step)()
    assert answers.shape == (step.requests + (step.chunk > 0),) and 0 <= answers.min() <= answers.max() < shape.vocab


@pytest.mark.parametrize(("requests", "context"), [(1, 4096), (2, 1024), (4, 300)])
def test_attention_to_the_parts_of_a_context_is_attention_to_the_whole(requests: int, context: int) -> None:
    layers, step = Layers(torch, DENSE, "cpu", pool=1 << 22), StepToMeasure(0, 0, requests, context)
    q = torch.randn(requests, 4, 64, dtype=torch.bfloat16)
    taken = []
    layers.cached = lambda place, *sizes: taken.append(torch.randn(sizes[0], 2, sizes[1], 64).bfloat16()) or taken[-1]
    found = layers.decode(q, 0, step).view(requests, 4, 64)
    parts = len(taken[0]) // requests
    assert parts == (4 if requests < 2 else 2 if requests < 4 else 1)
    keys, values = (x.view(requests, parts, 2, -1, 64).transpose(1, 2).reshape(requests, 2, context, 64) for x in taken)
    keys, values = (x.repeat_interleave(2, dim=1).float() for x in (keys, values))
    scores = torch.einsum("rhd,rhcd->rhc", q.float(), keys) / 8
    expected = torch.einsum("rhc,rhcd->rhd", scores.softmax(-1), values)
    assert torch.allclose(found.float(), expected, atol=0.02)


def test_each_token_goes_through_its_experts_by_weight() -> None:
    layers = Layers(torch, EXPERTS, "cpu", pool=1 << 16)
    x, own = torch.randn(24, 256, dtype=torch.bfloat16), layers.layers[0]
    layers.drawn = torch.randn(24, 16)
    found = layers.feed_forward(x, own)
    weights, chosen = ((x @ own["gate"].t()).float() + layers.drawn).softmax(-1).topk(4)
    for token in range(24):
        expected = torch.zeros(256)
        for weight, expert in zip(weights[token], chosen[token], strict=True):
            gate, up = (own["up"][expert].float() @ x[token].float()).chunk(2)
            expected += weight * (own["down"][expert].float() @ (torch.nn.functional.silu(gate) * up))
        assert torch.allclose(found[token].float(), expected, atol=0.05)


def test_a_chunk_sees_what_is_before_it_and_itself() -> None:
    layers = Layers(torch, DENSE, "cpu", pool=1 << 20)
    q, k, v = (torch.randn(1, heads, 6, 64, dtype=torch.bfloat16) for heads in (4, 2, 2))
    whole, _ = layers.attend(q, k, v, causal=True)
    last, _ = layers.attend(q[:, :, 4:], k, v, causal=True)
    alone, _ = layers.attend(q[:, :, 5:], k, v)
    assert torch.allclose(whole[:, :, 4:], last, atol=0.02) and torch.allclose(whole[:, :, 5:], alone, atol=0.02)


def test_the_grid_stays_within_a_step_and_the_kv() -> None:
    found = grid(1024, 20_000)
    assert found and len(set(found)) == len(found)
    assert all(1 <= step.tokens <= 1024 for step in found)
    assert all(step.tokens + step.before + step.requests * step.context <= 20_000 for step in found)
    assert StepToMeasure(32, 64, 8, 100).row() == (40, 800, 32 * (64 + 16))
