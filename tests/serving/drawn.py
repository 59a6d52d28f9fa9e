"""Random engines and requests, small enough that everything goes wrong in them."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st
from tests.serving.naive import Request

from kant.serving.engine import Engine, EngineSettings
from kant.serving.latency import LatencyModel

LATENCY = LatencyModel(floor=10.0, slope=0.0625, fixed=7.0, kv=0.0001, context=0.000003)


@dataclass
class Case:
    settings: EngineSettings
    requests: list[Request]


@st.composite
def cases(draw: st.DrawFn, **fixed: object) -> Case:
    block = draw(st.sampled_from([1, 2, 4, 16]))
    blocks = draw(st.integers(4, 40))
    options: dict[str, object] = {
        "max_num_seqs": draw(st.integers(1, 6)),
        "max_num_batched_tokens": draw(st.integers(1, 40)),
        "prefix_cache": draw(st.booleans()),
        "policy": draw(st.sampled_from(["fcfs", "priority"])),
        "async_scheduling": draw(st.booleans()),
        "sliding_windows": draw(st.sampled_from([(0,), (0,), (5,), (0, 3), (9, 0), (0, 2, 7), (4, 9)])),
    }
    settings = EngineSettings(LATENCY, blocks, block, **{**options, **fixed})  # type: ignore[arg-type]
    requests, longest = [], min(settings.tokens, 640)
    now = 0.0
    for i in range(draw(st.integers(1, 14))):
        now += draw(st.sampled_from([0.0, 0.001, 0.05, 0.4]))
        prompt = draw(st.integers(1, longest))
        output = draw(st.integers(1, min(longest - prompt + 1, 60)))
        alike = draw(st.integers(0, prompt // block))
        group = 1000 * draw(st.integers(0, 1))
        contents = [group + k for k in range(alike)]
        most = output + draw(st.sampled_from([0, 1, 9]))
        requests.append(Request(i, now, prompt, output, draw(st.integers(0, 2)), contents, most))
    return Case(settings, requests)


def engine_of(case: Case) -> Engine:
    """An engine that has run the case to its end."""
    engine = Engine(case.settings, 2)
    for request in case.requests:
        engine.run(request.arrival)
        engine.add(
            request.arrival, request.prompt, request.output, request.priority, request.contents, most=request.most
        )
    engine.run()
    return engine
