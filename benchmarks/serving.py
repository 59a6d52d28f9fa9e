"""Steps of one engine a CPU-second, beside the same rules in plain Python objects."""

from __future__ import annotations

from collections.abc import Iterator

from tests.serving.naive import Request, run_naively

from benchmarks.measure import Figure, cpu_seconds
from kant.serving import columns as c
from kant.serving.engine import Engine, EngineSettings
from kant.serving.latency import latency_model

SEQUENCES = 64
LATENCY = latency_model("llama-3-8b", "a100")[0]
SETTINGS = EngineSettings(LATENCY, num_blocks=20_000, max_num_seqs=SEQUENCES, max_num_batched_tokens=2048)


def load(count: int, output: int) -> list[Request]:
    """Requests that all wait from the start, so that every step has 64 of them."""
    return [Request(i, 0.0, 200 + 13 * (i % 40), output + 7 * (i % 30), 0.0, []) for i in range(count)]


def steps(settings: EngineSettings, requests: list[Request]) -> int:
    """Run the requests to their end; how many steps that took."""
    engine = Engine(settings, len(requests) + 1)
    for request in requests:
        engine.add(request.arrival, request.prompt, request.output)
    engine.run()
    return int(engine.state[c.STEPS])


def measure() -> Iterator[Figure]:
    """With and without the prefix cache; the naive engine has a tenth of the requests."""
    for name, caching in (("serving-steps", False), ("serving-steps-cached", True)):
        settings = EngineSettings(LATENCY, 20_000, 16, SEQUENCES, 2048, caching)
        steps(settings, load(10, 10))  # compiled
        requests = load(3200, 300)
        took, done = cpu_seconds(lambda s=settings, r=requests: steps(s, r), 3)  # type: ignore[misc]
        few = load(128, 100)
        naive_took, naive = cpu_seconds(lambda s=settings, r=few: run_naively(s, r).steps)  # type: ignore[misc]
        yield Figure(
            name,
            done / took,
            "steps a CPU-second",
            (done / took) / (naive / naive_took),
            "naive",
            "the loop over sequences",
        )
