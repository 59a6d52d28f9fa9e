"""`kant join` and `kant token join`, as far as they speak with nobody."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.command import kant

from kant.local.joined import agent
from kant.local.joined.keys import make_keys


@pytest.fixture
def token(tmp_path: Path) -> Path:
    made = kant("token", "join", "--home", tmp_path / "first")
    assert made.code == 0 and made.out.startswith("kant_join_") and made.out.count("\n") == 1
    assert kant("token", "join", "--home", tmp_path / "first").out == made.out, "there is one"
    path = tmp_path / "token"
    path.write_text(made.out)
    return path


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("gpu1",), "kant: --token-file: expected the output of `kant token join` on the first machine"),
        (("gpu1", "--token-file", "none"), "kant: --token-file none: expected a file that can be read"),
        (("gpu1:x", "--token-file", "token"), "kant: ADDRESS: expected an address such as gpu1 or 10.0.0.1:5269, got"),
        (("gpu1", "--token-file", "token", "--cluster", "2x4"), "kant: --cluster: expected one node, such as 1x4, got"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: Path, words: tuple[str, ...], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert kant("join", *words, "--home", tmp_path / "agent").refusal().startswith(sentence)


def test_a_home_that_others_may_open_is_refused(tmp_path: Path, token: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    said = kant("join", "gpu1", "--token-file", token, "--home", tmp_path / "open").refusal()
    assert said.startswith("kant: --home: expected a folder of this user that no other user may open, got")


def test_an_address_that_leads_nowhere_is_tried_for_a_while_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: Path
) -> None:
    monkeypatch.setattr(agent, "FIRST_S", 0.3)
    for address in ("no-such-machine.invalid:5269", "127.0.0.1:1"):
        words = (address, "--token-file", token, "--cluster", "1x1", "--home", tmp_path / "agent")
        ended = kant("join", *words)
        said = ended.err.splitlines()[-1]  # after the log
        assert said.startswith("kant: ADDRESS: expected the address of `kant up --join-listen` within 0.3 s (")
        assert said.endswith(f"got '{address}'") and ended.code == 2


def test_without_openssl_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    said = kant("token", "join", "--home", tmp_path / "first").refusal()
    assert said.startswith("kant: --join-listen: expected openssl in the PATH")
    with pytest.raises(Exception, match="openssl"):
        make_keys(tmp_path / "other")
