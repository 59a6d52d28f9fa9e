"""Links resolve, and the pages name everything there is and nothing there is not."""

from __future__ import annotations

import re
from typing import Any

from tests.docs.pages import PAGES, ROOT, anchors, blocks, links, name_of, words_in_backticks

from kant.queueing.discipline import Discipline
from kant.scheduler.profile import builtin_profile, builtin_texts, parse_profile
from kant.scheduler.registry import KINDS, policies
from kant.sim.options import SimOptions, read_options
from kant.sim.run import simulate
from kant.testing import make_cluster, make_jobs, make_profile

DOCS = ROOT / "docs"
METRICS, PROFILES, POLICIES, JOURNAL = (DOCS / f"{name}.md" for name in ("metrics", "profiles", "policies", "journal"))
ROOMS = sorted(folder.name for folder in (ROOT / "src" / "kant").iterdir() if folder.is_dir())
NESTED_BY_NAME = {"wait_by_size", "by_size", "by_pool", "by_queue", "rejected_because"}
"""Objects whose keys are names of size classes, pools, queues or reasons."""


def test_links_inside_the_repository_resolve() -> None:
    wrong = []
    for page in PAGES:
        for link in links(page):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            if re.match(r"[a-z]+:", link):
                continue
            if not target.exists() or not target.is_relative_to(ROOT) or (anchor and anchor not in anchors(target)):
                wrong.append(f"{name_of(page)}: {link}: no such file or heading in the repository")
    assert not wrong


def test_files_of_this_repository_that_a_page_names_exist() -> None:
    wrong = []
    for page in PAGES:
        for name in words_in_backticks(page):
            if re.fullmatch(r"(src|tests|docs|benchmarks)/[\w./-]+", name) and not (ROOT / name).exists():
                wrong.append(f"{name_of(page)}: {name}")
            in_a_room = name.split("/")[0] in ROOMS and re.fullmatch(r"\w+/[\w./-]+", name)
            if in_a_room and not (ROOT / "src" / "kant" / name).exists():
                wrong.append(f"{name_of(page)}: {name}")
    assert not wrong


def test_files_that_the_drawing_of_the_house_names_exist() -> None:
    """Also those that it names without their room."""
    there = {path.name for path in (ROOT / "src" / "kant").rglob("*.py")}
    named = {name for name in words_in_backticks(ROOT / "DESIGN.md") if re.fullmatch(r"\w+\.py", name)}
    assert named and named <= there, sorted(named - there)


def test_no_page_speaks_of_somebodys_machine() -> None:
    folders = re.compile(r"(?<![\w.])/(work|home|root|tmp|Users)/")
    assert not [name_of(page) for page in PAGES if folders.search(page.read_text(encoding="utf-8"))]


def keys_of(value: dict[str, Any]) -> set[str]:
    """The keys of an object of `--json`, all levels; not those that are names."""
    found: set[str] = set()
    for key, part in value.items():
        found.add(key)
        inner = list(part.values()) if key in NESTED_BY_NAME and isinstance(part, dict) else [part]
        for each in inner:
            found |= keys_of(each) if isinstance(each, dict) else set()
    return found


def test_every_key_of_json_is_on_the_page_about_metrics() -> None:
    jobs, cluster = make_jobs(submit=[0, 1, 2], runtime=[5, 5, 5], gpus=[1, 2, 8]), make_cluster(2, 2)
    plain = simulate(jobs, cluster, make_profile()).summary
    static = simulate(jobs, cluster, make_profile("fifo", "loss", "fgd", static=True)).summary
    curves = static.keys() - plain.keys()
    missing = (keys_of(plain) | curves) - words_in_backticks(METRICS)
    assert not missing, f"docs/metrics.md says nothing of {sorted(missing)}"


def test_every_option_and_field_is_on_the_page_about_profiles() -> None:
    text = PROFILES.read_text(encoding="utf-8")
    options = text.split("### `[simulation]`")[1].split("\n## ")[0]
    for name in SimOptions.__struct_fields__:
        assert f"| `{name}` |" in options, name
    for name in re.findall(r"^\| `(\w+)` \|", options, re.MULTILINE):
        assert name in SimOptions.__struct_fields__, name
    for kind in KINDS:
        for policy in policies(kind).values():
            for field in policy.fields:
                assert f"`{field.name}`" in text, f"{policy.name}: {field.name}"


def test_every_policy_profile_and_generator_is_listed_and_no_other() -> None:
    text = POLICIES.read_text(encoding="utf-8").split("\n## ")[0]
    for kind in KINDS:
        table = text.split(f"| {kind} | ")[1].split("\n\n")[0]
        assert set(re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE)) == set(policies(kind)), kind
    listed = words_in_backticks(PROFILES)
    assert not set(builtin_texts()) - listed
    built_in = PROFILES.read_text(encoding="utf-8").split("## Built-in profiles")[1]
    assert set(re.findall(r"`([\w-]+)`", built_in)) == set(builtin_texts())


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_the_index_has_every_page_once() -> None:
    index = DOCS / "README.md"
    listed = [(DOCS / link.partition("#")[0]).resolve() for link in links(index)]
    assert sorted(page for page in listed if page.parent == DOCS) == sorted(set(DOCS.glob("*.md")) - {index})
    assert sum("design" not in page.parts for page in DOCS.rglob("*.md")) <= 80


def test_the_index_of_the_design_has_every_note_in_order() -> None:
    index = DOCS / "design" / "README.md"
    numbered = [link for link in links(index) if re.match(r"\d{4}-", link)]
    assert numbered == sorted(path.name for path in index.parent.glob("[0-9]*.md"))


def test_the_glossary_is_one_page_in_order() -> None:
    lines = (DOCS / "glossary.md").read_text(encoding="utf-8").splitlines()
    words = [line.split("**")[1] for line in lines if line.startswith("| **")]
    assert words == sorted(words, key=str.lower) and len(lines) < 60


def test_the_files_to_read_first_exist() -> None:
    table = (ROOT / "DESIGN.md").read_text(encoding="utf-8").split("in this order")[1].split("## Floors")[0]
    files = re.findall(r"^\| `([\w/]+\.py)` \|", table, re.MULTILINE)
    assert len(files) == 12 and all((ROOT / "src" / "kant" / file).exists() for file in files)


def test_profiles_that_commands_ask_for_exist() -> None:
    for page in PAGES:
        for block in blocks(page):
            for name in re.findall(r"--profile ([\w./-]+)", block.text if block.kind == "sh" else ""):
                assert name in builtin_texts() or name.endswith(".toml"), f"{name_of(page)}: {name}"


def test_every_tag_of_the_journal_is_on_its_page() -> None:
    from kant.model import decision, event

    tags = {kind.__struct_config__.tag for kind in event.Event.__args__}
    tags |= {kind.__struct_config__.tag for kind in (*decision.Decision.__args__, *decision.Reason.__args__)}
    assert not tags - words_in_backticks(JOURNAL)


def test_the_profiles_in_the_pages_can_be_read() -> None:
    examples = {"fewest-pods", "largest-first", "one-line", "shortest-backfills"}  # run by test_examples
    for page in (PROFILES, POLICIES):
        for block in blocks(page):
            if block.kind == "toml" and block.rest != "wrong.toml" and not any(name in block.text for name in examples):
                read_options(parse_profile(block.text, name_of(page)).simulation, name_of(page))


def test_built_in_profiles_for_use_have_no_rule_of_an_experiment() -> None:
    text = PROFILES.read_text(encoding="utf-8").split("## Built-in profiles")[1]
    for name in re.findall(r"^\| `([\w-]+)` \|", text, re.MULTILINE):
        profile = builtin_profile(name)
        assert set(profile.simulation) <= {"resume_cost"}, name
        assert isinstance(profile.discipline, Discipline)
        assert profile.about in text, name
