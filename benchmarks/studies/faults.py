"""What replacing a failed node in place is worth: `python -m benchmarks.studies.faults [SEEDS]`.

Two weeks after Seren at 85 % load on 1,024 GPUs, with a fault of a node every 15 days and 12 hours of repair, both much
worse than usual, so that two weeks tell something. 58.7 % of the faults cost one GPU, as in Llama 3's pre-training
(arXiv 2407.21783, table 5); checkpoints every half hour, five minutes to restart. Each profile meets the same faults
twice: with the first claim on what is left of a gang's place (`in_place_s`), and without. About three minutes a seed.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import msgspec
import numpy as np

from kant.model.status import JobStatus
from kant.model.units import GPU, HOUR
from kant.scheduler.profile import Profile, builtin_profile
from kant.sim.run import simulate
from kant.workload.cluster_file import read_cluster
from kant.workload.generate import generate

GPUS, DAYS, LOAD, LARGE = 1024, 14, 0.85, 64
LARGEST = 512  # GPUs of a job: whoever needs the whole cluster waits until all of it is well
OPTIONS = {
    "mtbf_days": 15.0, "repair_h": 12.0, "gpu_fault_share": 0.587, "checkpoint_s": 1800, "resume_cost": [[4096, 300]],
}  # fmt: skip
PROFILES = ("kant", "e-binpack")


def with_faults(name: str, in_place: bool) -> Profile:
    """A built-in profile under which nodes fail."""
    known = builtin_profile(name)
    requeue = known.requeue if in_place else msgspec.structs.replace(known.requeue, in_place_s=-1)
    return replace(known, simulation=known.simulation | OPTIONS, requeue=requeue)


def main(seeds: int) -> None:
    """One line for each seed, profile and rule."""
    cluster = read_cluster(f"{GPUS // 8}x8")
    print("seed profile    in place  faults evicted replaced  lost GPU-h  large jobs: mean JCT h, P90 h, mean wait h")
    for seed in range(1, seeds + 1):
        jobs = generate("seren", gpus=LARGEST, load=LOAD * GPUS / LARGEST, days=DAYS, seed=seed)
        for name in PROFILES:
            for in_place in (True, False):
                result = simulate(jobs, cluster, with_faults(name, in_place), seed=seed)
                own, found = result.jobs, result.summary
                large = (own.gpus > LARGE * GPU) & (own.status == JobStatus.FINISHED)
                jct = (own.end - own.submit)[large] / HOUR
                print(
                    f"{seed:>4} {name:<10} {in_place!s:>8} {found['node_faults']:>7}"
                    f" {found['evictions'] - found['preemptions']:>7} {found['replaced_in_place']:>8}"
                    f" {found['lost_gpu_s'] / 3600:>11,.0f} {int(large.sum()):>11}: {jct.mean():8.2f}"
                    f" {np.quantile(jct, 0.9):8.2f} {own.wait[large].mean() / HOUR:8.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
