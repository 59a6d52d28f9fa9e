"""The taxonomy of schedulers: ten keys, and the possible values of each. Every policy has such tags.

Levels and architectures are after the surveys of Sliwko and Getov, "Workload Schedulers" (arXiv 2511.10258), and of
Sliwko, "A Taxonomy of Schedulers" (arXiv 2511.01860). The other keys are ours.
"""

from __future__ import annotations

from collections.abc import Mapping

TAXONOMY: dict[str, dict[str, str]] = {
    "level": {
        "os": "processes on the cores of one machine",
        "node": "work inside one machine or engine",
        "cluster": "work on the machines of one cluster",
        "dataflow": "the operators of one data-processing job",
        "meta": "several clusters",
    },
    "architecture": {
        "monolithic": "one scheduler decides everything",
        "partitioned": "several, each with a fixed part of the machines",
        "two-level": "one offers resources or routes work, others decide about these",
        "shared-state": "several on one state, with conflicts resolved afterwards",
        "decentralised": "many, each with the state that it happens to know",
    },
    "unit": {
        "task": "a process or a pod",
        "gang": "a job whose pods start together",
        "dag": "tasks with precedences",
        "vm": "a virtual machine",
        "request": "a request to a service",
    },
    "timing": {
        "online": "at every arrival and departure",
        "round": "at fixed intervals",
        "periodic": "now and then, over what is already placed",
        "fallback": "when another scheduler has failed",
        "offline": "once, when everything is known",
    },
    "knowledge": {
        "none": "nothing about run times or outputs",
        "estimated": "what users or limits say",
        "learned": "what was learned from earlier work",
        "clairvoyant": "the truth",
    },
    "objective": {
        "none": "no measure in particular",
        "utilisation": "GPUs in use",
        "jct": "job completion times and waits",
        "latency": "the latency of requests",
        "makespan": "the end of the last job",
        "tardiness": "time after due dates",
        "fairness": "shares of users or queues",
        "priority": "the important first",
        "fragmentation": "usable free resources",
        "locality": "few domains of the fabric",
        "availability": "few replicas lost at once",
        "cost": "what is bought or reserved",
        "messages": "messages between schedulers and workers",
    },
    "preemption": {
        "none": "running work is left alone",
        "evict": "work is stopped and waits again",
        "move": "work goes elsewhere",
        "budgeted": "at most this number of moves",
    },
    "resources": {
        "none": "resources are not considered",
        "1-d": "one resource",
        "multi-d": "several resources",
        "topology": "the fabric between them",
        "heterogeneous": "machines that differ",
    },
    "method": {
        "rule": "an index or a priority rule",
        "packing": "matching demands to free resources by a score",
        "search": "local search or tree search",
        "solver": "LP, MIP, CP or flow",
        "market": "prices or auctions",
        "learned": "a fitted or trained model, or a rule that one found",
        "randomised": "draws",
    },
    "freshness": {
        "live": "the state as it is",
        "cached": "a snapshot, or the last report",
    },
}  # fmt: skip
"""Each key with its values and their meanings."""


def wrong_tags(tags: object) -> str:
    """Return the first error in the tags of a policy, as the end of a sentence; empty if there is none."""
    if not isinstance(tags, Mapping):
        return f"expected a mapping of keys to values, got {tags!r}"
    unknown = [key for key in tags if key not in TAXONOMY]
    if unknown:
        return f"{unknown[0]} is not one of {', '.join(TAXONOMY)}"
    for key, known in TAXONOMY.items():
        values = tags.get(key, ())
        if not isinstance(values, tuple) or not values:
            return f"{key} has no value of {', '.join(known)}"
        for value in values:
            if value not in known:
                return f"{key}={value} is not one of {', '.join(known)}"
        if "none" in values and len(values) > 1:
            return f"{key} has `none` and another value: expected only one of these"
    return ""
