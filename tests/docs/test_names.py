"""The documentation names no class, attribute, module, command or option that is not there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from tests.docs import names
from tests.docs.pages import PAGES, blocks, name_of, words_in_backticks

TODAY = [page for page in PAGES if page.name != "CHANGELOG.md"]
"""The pages that speak of Kant as it is."""

CLASS = re.compile(r"[A-Z][a-z]+(?:[A-Z][a-z]*)+")
ATTRIBUTE = re.compile(r"([A-Z]\w+)\.([a-z_]\w*)(?:\(.*\))?")
MODULE = re.compile(r"(?:python -m )?((?:kant|benchmarks|tests)(?:\.\w+)+)(?:\(.*\)|\[.*\])?(?: .*)?")
COMMAND = re.compile(r"(?:kant|kubectl kant) [a-z-].*")
IN_LINE = re.compile(r"(?:^|[|;&(] *)((?:kant|kubectl kant) [a-z-][^|;&)]*)")
OPTION = re.compile(r"(--[a-z][\w-]+)(?:[ =].*)?")
FILES = {"kant.db", "kant.policies", "kant.readers", "kant.json", "kant.log", "kant.log.1", "kant.sock", "kant.toml"}
"""What else is written like a module: files, and groups of entry points."""

FOREIGN = {
    "AdmissionCheck", "BindRequest", "GangScheduling", "GenericWorkload", "InferenceModelRewrite", "InferencePool",
    "LocalQueue", "MultiKueue", "OneLine", "PreemptionAsync", "ResourceQuota", "SchedulingBasic", "SchedulingDaemonset",
    "SchedulingGatedPodsWithPodAffinityImpactForThroughput", "SchedulingWhileGated", "SchedulingWithExtendedResource",
    "SchedulingWithResourceClaimTemplate", "SteadyStateClusterResourceClaimTemplate", "TopologyAwareWorkloadScheduling",
}  # fmt: skip
"""Names of other projects, and of examples in pages, that the sources do not have."""

OTHERS = {
    "--build-arg": "docker",
    "--constraint": "sbatch",
    "--gres": "sbatch",
    "--scheduling-policy": "vLLM",
    "--segment": "sbatch",
    "--set": "helm",
}
"""Options of other programs, which pages name without the program."""


def faults(text: str) -> list[str]:
    """What a text in backticks names that is not there."""
    found = []
    if CLASS.fullmatch(text) and text not in FOREIGN:
        found += [text] if text not in names.words() else []
    if match := ATTRIBUTE.fullmatch(text):
        name, attribute = match.groups()
        found += [text] if attribute not in names.attributes(name) else []
    if (match := MODULE.fullmatch(text)) and match[1] not in FILES:
        found += [match[1]] if not names.resolves(match[1]) else []
    if COMMAND.fullmatch(text):
        fault = names.fault_of(_words(text))
        found += [f"{text}: {fault}"] if fault is not None else []
    if match := OPTION.fullmatch(text):
        found += [match[1]] if match[1] not in names.options() and match[1] not in OTHERS else []
    return found


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:  # a quotation mark that the pattern has cut
        return line.split()


def test_a_page_names_nothing_that_is_not_there() -> None:
    found = {name_of(page): wrong for page in TODAY if (wrong := faults_of(page))}
    assert not found


def faults_of(page: Path) -> list[str]:
    found = [fault for text in sorted(words_in_backticks(page)) for fault in faults(text)]
    if "slurm" in page.name:  # it names options of Slurm's own commands
        found = [fault for fault in found if not fault.startswith("--")]
    for block in blocks(page):
        if block.kind in ("sh", "console") and block.what != "fails":
            for line in re.sub(r"\\\n", " ", block.text).splitlines():
                found += [fault for command in IN_LINE.findall(line.removeprefix("$ ")) for fault in faults(command)]
    return found


@pytest.mark.parametrize(
    "text",
    [
        "CyclePlan.review", "CyclePlanner", "Nobody.knows", "kant.scheduler.cycles", "kant.scheduler.cycle.run_cycles",
        "kant generate x",
        "python -m benchmarks.studies.nothing 3", "kant.Workload.generated()", "kant submit --gpu 1",
        "--no-such-option",
        "kant trace draw", "kubectl kant submit", "kant simulate week.csv --profil kant",
    ],
)  # fmt: skip
def test_a_wrong_name_is_found(text: str) -> None:
    assert faults(text)


@pytest.mark.parametrize(
    "text",
    [
        "CyclePlan", "LocalQueue", "CyclePlan.lowest", "kant.scheduler.cycle.run_cycle", "kant.simulate(jobs)",
        "kant trace generate philly",
        "python -m benchmarks.studies.turns 3", "kant.Workload.generate(...)", "kant submit --gpus 1 -- x --gpu 3",
        "kubectl kant why POD", "--gpus 2", "kant check x.csv", "Kant.", "kant", "Pods.",
    ],
)  # fmt: skip
def test_what_is_there_is_no_fault(text: str) -> None:
    assert not faults(text)
