"""The first page of `kant --help`, and what is answered to words of other tools."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from cyclopts import App
from tests.cli.command import kant

from kant.cli.app import HELP
from kant.cli.other_words import INSTEAD
from kant.cli.verbs import VERBS, app_of

TEXT = HELP.read_text(encoding="ascii")
GROUPS = re.findall(r"^(\w+)\n((?:  .+\n)+)", TEXT, re.MULTILINE)


def test_the_first_page_names_every_verb_once() -> None:
    named = [
        verb for _, lines in GROUPS for verb in re.findall(r"([\w-]+)(?:,|  )", re.sub(r"(?<=\S)  .*", "  ", lines))
    ]
    assert sorted([*named, "completion", "man"]) == sorted(VERBS)
    assert "kant completion SHELL" in TEXT and "kant man COMMAND" in TEXT


def test_the_first_page_is_short_and_in_groups() -> None:
    lines = TEXT.splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= 80
    assert [title for title, _ in GROUPS] == ["Jobs", "Answers", "Operating", "Simulation", "Lab"]


def commands_in(sentence: str) -> Iterator[list[str]]:
    for command in re.findall(r"`kant ([^`]+)`", sentence):
        yield command.split()


@pytest.mark.parametrize("word", INSTEAD)
def test_a_word_of_another_tool_is_answered_with_the_right_command(word: str) -> None:
    said = kant(word, "1").refusal()
    assert said.startswith(f"kant: {word} is not a command of Kant: ") and said.count("`kant ") >= 2  # and --help
    for verb, *rest in commands_in(INSTEAD[word]):
        if verb == "--version":
            continue
        app: App = app_of(verb)[verb]
        options = {name for each in app.assemble_argument_collection() for name in each.names}
        assert {part for part in rest if part.startswith("--") and part != "--"} <= options, (word, verb)


def test_words_that_people_type_first_are_commands_or_answered() -> None:
    words = (
        "sbatch srun salloc squeue sacct sinfo scontrol scancel watch follow stop pause resume ls ps rm kill start help"
    )
    assert not [word for word in (*words.split(), "status", "run", "submit") if word not in {*INSTEAD, *VERBS, "help"}]
    assert not INSTEAD.keys() & VERBS.keys()


def test_a_word_that_nobody_knows_is_refused_as_before() -> None:
    assert 'Unknown command "nonsense"' in kant("nonsense").refusal()
    assert 'Did you mean "status"' in kant("statsu").refusal()
