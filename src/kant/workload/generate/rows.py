"""The rows that generators follow: fits and tables of published traces.

Durations are log-normal mixtures (part, mu, sigma of log-seconds) fitted to published distributions. Sizes are percent
of jobs and of GPU-time. What a trace does not publish is taken from another trace, which a comment names. Time zero is
a Monday at 00:00.
"""

from __future__ import annotations

from typing import Any

from kant.workload.generate.law import Mixture, mixture
from kant.workload.generate.row import ClusterStatistics, Size

ACME = "Hu et al., Characterization of Large Language Model Development in the Datacenter, NSDI'24"
HELIOS = "Hu et al., Characterization and Prediction of Deep Learning Workloads (Helios), SC'21"
PHILLY = "Jeon et al., Analysis of Large-Scale Multi-Tenant GPU Clusters, ATC'19; msr-fiddle/philly-traces"
PAI = "Weng et al., MLaaS in the Wild, NSDI'22; figures as republished with Acme"

# The longest runs in the traces, in seconds. The fits of Helios have too heavy tails, so each distribution is truncated
# where its mean equals the published mean (the longest run in Helios is 4,320,009 s).
LONGEST_PHILLY = 4_240_676.0
LONGEST_SEREN = 1_209_604.0
LONGEST_KALOS = 625_740.0
LONGEST_PAI = 626_371.0

LADDER = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

VENUS_HOURS = (
    0.90, 0.66, 0.60, 0.38, 0.27, 0.21, 0.19, 0.22, 0.37, 0.80, 1.29, 1.47,
    1.16, 1.30, 1.56, 1.66, 1.73, 1.73, 1.28, 1.31, 1.34, 1.36, 1.15, 1.04,
)  # fmt: skip
VENUS_WEEKDAYS = (1.02, 1.11, 1.27, 1.20, 0.95, 0.68, 0.77)
PHILLY_HOURS = (
    1.27, 0.99, 1.12, 1.10, 0.70, 1.15, 1.67, 2.09, 1.11, 1.01, 1.02, 0.87,
    0.75, 0.71, 0.64, 0.65, 0.88, 0.67, 0.80, 0.73, 1.02, 0.92, 1.13, 1.01,
)  # fmt: skip
PHILLY_WEEKDAYS = (0.86, 1.07, 1.14, 1.29, 1.44, 0.61, 0.60)

# Philly: 93 % of submissions are single jobs, 6 % are pairs, and 1 % have up to 19 jobs in the same second.
SESSIONS = (0.93, 0.06, *(0.01 * 0.7**k * 0.3 / (1 - 0.7**17) for k in range(17)))


VENUS: dict[str, Any] = {
    "hours": VENUS_HOURS, "weekdays": VENUS_WEEKDAYS, "noise": 0.7, "memory": 0.5, "gap": 0.4, "sessions": SESSIONS,
}  # fmt: skip
"""Statistics that are known only for Venus, and are used for clusters that do not publish them."""


def sizes(jobs: tuple[float, ...], gpu_time: tuple[float, ...]) -> tuple[Size, ...]:
    """Return the sizes 1, 2, 4, … with their percentages. Sizes without jobs are left out."""
    rows = zip(LADDER, jobs, gpu_time, strict=False)
    return tuple(Size(gpus, part, time) for gpus, part, time in rows if part)


def one_law(longest: float, *parts: tuple[float, float, float]) -> tuple[tuple[int, Mixture], ...]:
    """Return the same distribution of durations for jobs of all sizes."""
    return ((LADDER[-1], mixture(longest, *parts)),)


def _helios(
    cluster: str,
    gpus: int,
    per_hour: float,
    longest: float,
    jobs: tuple[float, ...],
    gpu_time: tuple[float, ...],
    *parts: tuple[float, float, float],
) -> ClusterStatistics:
    """Return a Helios cluster: sizes as in the paper's figure; hours, weekdays and noise of Venus for all four."""
    return ClusterStatistics(
        name=f"helios-{cluster}",
        source=HELIOS,
        gpus=gpus,
        per_hour=per_hour,
        sizes=sizes(jobs, gpu_time),
        durations=one_law(longest, *parts),
        queues=15,
        **VENUS,
    )


_ROWS = (
    ClusterStatistics(
        name="philly",
        source=PHILLY,
        gpus=2490,
        per_hour=42.0,
        # The 82,247 jobs of the file; the sizes above 32 are a split of its last bin.
        sizes=sizes(
            (93.2, 2.2, 2.3, 2.0, 0.24, 0.060, 0.015, 0.005),
            (18.1, 3.2, 16.7, 48.4, 11.5, 1.2, 0.4, 0.2),
        ),
        durations=(
            # Adding 1.2 % of long jobs restores the tail (p99 135,400 s), which the fit of one GPU misses.
            (1, mixture(LONGEST_PHILLY, (0.19, 4.16, 0.18), (0.798, 7.30, 1.72), (0.012, 12.0, 1.0))),
            # Truncated where the GPU-time of jobs of two to four GPUs equals the published value.
            (4, mixture(1_500_000.0, (0.49, 3.32, 0.94), (0.51, 10.21, 2.06))),
            (8, mixture(LONGEST_PHILLY, (0.69, 8.50, 2.60), (0.31, 12.25, 0.64))),
            (128, mixture(LONGEST_PHILLY, (0.50, 6.31, 2.32), (0.50, 11.62, 0.99))),
        ),
        hours=PHILLY_HOURS,
        weekdays=PHILLY_WEEKDAYS,
        noise=1.25,  # with 1.0 the hourly dispersion is half of the measured one
        memory=0.6,
        gap=0.32,
        sessions=SESSIONS,
        queues=15,
    ),
    _helios(
        "venus", 1022, 28.8, 1_500_000.0,
        (51.83, 5.54, 7.42, 25.17, 4.17, 3.62, 0.95, 1.30),
        (4.63, 3.37, 4.76, 29.37, 16.19, 25.09, 7.48, 9.11),
        (0.32, 4.92, 0.77), (0.68, 6.17, 3.16),
    ),
    _helios(
        "earth", 997, 97.3, 1_580_000.0,
        (89.15, 0.82, 2.09, 5.44, 1.58, 0.66, 0.11, 0.15),
        (11.49, 1.07, 6.28, 27.90, 20.02, 17.11, 7.26, 8.87),
        (0.47, 5.30, 0.33), (0.53, 6.41, 2.45),
    ),
    _helios(
        "saturn", 2080, 159.1, 530_000.0,
        (68.24, 2.80, 8.31, 15.57, 2.52, 1.82, 0.46, 0.28),
        (5.37, 1.71, 5.61, 27.55, 17.50, 26.44, 8.71, 7.11),
        (0.19, 4.46, 0.69), (0.81, 5.01, 3.19),
    ),
    _helios(
        "uranus", 2119, 74.9, 945_000.0,
        (66.25, 3.18, 4.30, 18.57, 5.56, 1.73, 0.36, 0.05),
        (3.27, 1.24, 3.85, 31.42, 24.82, 27.24, 7.07, 1.09),
        (0.43, 5.27, 1.31), (0.57, 6.24, 3.10),
    ),
    ClusterStatistics(
        name="seren",
        source=ACME,
        gpus=2288,
        per_hour=150.3,  # 663,813 GPU jobs from March to August 2023
        sizes=sizes(
            (54.0, 11.4, 2.5, 28.8, 1.1, 0.96, 0.50, 0.24, 0.18, 0.13, 0.14),
            (1.3, 0.4, 0.6, 9.6, 1.2, 6.0, 8.5, 14.1, 14.6, 13.4, 30.3),
        ),
        # The fit of all jobs, and 2 % of the fit of pretraining jobs, which restores the tail that the former misses.
        durations=one_law(
            LONGEST_SEREN,
            (0.98 * 0.83, 4.46, 2.34), (0.98 * 0.17, 5.52, 0.56),
            (0.02 * 0.27, 5.84, 0.78), (0.02 * 0.73, 5.53, 3.58),
        ),
        queues=12,
        **VENUS,
    ),
    ClusterStatistics(
        name="kalos",
        source=ACME,
        gpus=2416,
        per_hour=4.5,  # 19,907 GPU jobs from March to August 2023
        sizes=sizes(
            (86.3, 2.1, 0, 5.6, 0.3, 0.4, 0.65, 0.4, 1.2, 2.0, 1.1),
            (0.1, 0.02, 0, 0.6, 0.05, 1.3, 1.3, 0.5, 21.1, 39.3, 35.9),
        ),
        # The fits of evaluation, debugging and pretraining jobs, with weights by which they fit all jobs together.
        durations=one_law(
            LONGEST_KALOS,
            (0.905 * 0.27, 3.46, 0.17), (0.905 * 0.73, 5.42, 1.42),
            (0.050 * 0.18, 3.52, 0.51), (0.050 * 0.82, 6.01, 0.88),
            (0.045 * 0.74, 5.96, 1.41), (0.045 * 0.26, 10.27, 1.25),
        ),
        queues=10,
        **VENUS,
    ),
    ClusterStatistics(
        name="pai",
        source=PAI,
        gpus=6742,
        per_hour=720.0,  # 1,037,085 GPU jobs in two months
        sizes=sizes((97.1, 1.6, 0.5, 0.9), (68.1, 4.8, 5.8, 21.4)),
        durations=one_law(LONGEST_PAI, (0.15, 3.44, 0.53), (0.85, 6.81, 2.01)),
        # The mean (0.68 GPUs over all jobs) and the median (0.5) are published, but not the split.
        shares=((250, 0.36), (500, 0.30), (1000, 0.34)),
        queues=15,
        users_per_queue=40,
        **(VENUS | {"noise": 0.3, "gap": 0.59}),
    ),
)  # fmt: skip

ROWS: dict[str, ClusterStatistics] = {row.name: row for row in _ROWS}
