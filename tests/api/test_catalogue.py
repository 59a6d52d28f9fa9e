"""Tags: every policy has them, `--where` chooses by them, and the map in the documentation shows them."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from benchmarks.studies import taxonomy
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.command import kant

from kant.api.catalogue import KINDS, PolicyEntry, catalogue, check_tag, chosen
from kant.model.errors import InputError
from kant.model.taxonomy import tagged
from kant.model.taxonomy_keys import TAXONOMY, wrong_tags

ENTRIES = catalogue()
PAIRS = [(key, value) for key, values in TAXONOMY.items() for value in values]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{entry.kind}.{entry.policy}")
def test_a_policy_has_all_ten_tags_of_known_values_and_a_source(entry: PolicyEntry) -> None:
    assert wrong_tags(entry.tags) == "" and len(entry.tags) == 10
    assert entry.about and entry.source


def test_every_kind_is_there_and_no_name_twice() -> None:
    names = [(entry.kind, entry.policy) for entry in ENTRIES]
    assert list(dict.fromkeys(kind for kind, _ in names)) == list(KINDS)
    assert len(set(names)) == len(names)


@given(where=st.lists(st.sampled_from(PAIRS), max_size=3), more=st.sampled_from(PAIRS))
def test_each_tag_narrows_and_what_is_left_out_lacks_one(where: list[tuple[str, str]], more: tuple[str, str]) -> None:
    found = chosen(ENTRIES, where)
    fewer = chosen(ENTRIES, [*where, more])
    assert [entry for entry in found if more[1] in entry.tags[more[0]]] == fewer
    for entry in ENTRIES:
        assert (entry in found) == all(value in entry.tags[key] for key, value in where)


@given(key=st.sampled_from(list(TAXONOMY)), value=st.text(max_size=12))
def test_a_tag_that_is_not_there_is_refused_with_those_there_are(key: str, value: str) -> None:
    if value in TAXONOMY[key]:
        assert check_tag(key, value, "x") == (key, value)
        return
    with pytest.raises(InputError) as error:
        check_tag(key, value, "x")
    assert all(known in str(error.value) for known in TAXONOMY[key])


@given(key=st.sampled_from(list(TAXONOMY)), extra=st.text(min_size=1, max_size=8).filter(lambda text: text.strip()))
def test_wrong_tags_are_found(key: str, extra: str) -> None:
    right = ENTRIES[0].tags
    assert key in wrong_tags({k: v for k, v in right.items() if k != key})
    assert key in wrong_tags({**right, key: ()})
    assert wrong_tags({**right, f"{key}!": ("x",)})
    assert wrong_tags(tagged(right, **{key: "nowhere"})) == f"{key}=nowhere is not one of {', '.join(TAXONOMY[key])}"
    assert wrong_tags(extra)


def test_the_verb_lists_those_that_have_the_tags() -> None:
    args = ("--where", "method=learned", "--where", "unit=request")
    found = kant("policies", *args, "--json").json()
    names = {(kind, policy["policy"]) for kind, policies in found.items() for policy in policies}
    wanted = chosen(ENTRIES, [("method", "learned"), ("unit", "request")])
    assert wanted and names == {(entry.kind, entry.policy) for entry in wanted}
    text = kant("policies", *args).out
    assert all(entry.policy in text for entry in wanted) and "fifo" not in text


def test_no_policy_with_the_tags_is_an_answer_of_no() -> None:
    none = kant("policies", "--where", "level=os")
    assert none.code == 1 and "no policy has level=os" in none.out


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("colour=red", "expected a tag such as method=learned, with a key of level, architecture, unit"),
        ("method", "expected method= and one of rule, packing"),
        ("method=magic", "expected method= and one of rule, packing"),
        ("", "expected a tag such as method=learned"),
    ],
)
def test_an_unknown_tag_is_refused_in_one_sentence(text: str, sentence: str) -> None:
    assert sentence in kant("policies", "--where", text).refusal()


def test_the_map_of_the_documentation_is_what_the_tags_say() -> None:
    assert taxonomy.PAGE.read_text(encoding="utf-8") == taxonomy.page(), "run python -m benchmarks.studies.taxonomy"


def words(svg: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


@pytest.mark.long
def test_the_picture_of_the_map_is_what_the_tags_say() -> None:
    stored, drawn = taxonomy.PICTURE.read_text(encoding="utf-8"), taxonomy.picture().svg()
    assert words(stored) == words(drawn), "run python -m benchmarks.studies.taxonomy"
    counts = sum(any(value in e.tags[key] for e in ENTRIES if e.kind == kind) for kind in KINDS for key, value in PAIRS)
    assert sum(word.isdecimal() for word in words(drawn)) == counts
    marks = sum(len(paper.tags[key]) for paper in taxonomy.papers() for key in TAXONOMY)
    (axes,) = taxonomy.picture().inner.axes
    assert sum(len(dots.get_offsets()) for dots in axes.collections) == marks


def test_the_map_follows_the_tags(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    changed = [dataclasses.replace(ENTRIES[0], tags=tagged(ENTRIES[0].tags, level="meta")), *ENTRIES[1:]]
    monkeypatch.setattr(taxonomy, "catalogue", lambda: changed)
    assert taxonomy.PAGE.read_text(encoding="utf-8") != taxonomy.page()


def test_papers_have_tags_and_name_policies_that_exist() -> None:
    names = {f"{entry.kind}.{entry.policy}" for entry in ENTRIES}
    for paper in taxonomy.papers():
        assert wrong_tags(paper.tags) == "", paper.name
        assert set(paper.policies) <= names, paper.name
