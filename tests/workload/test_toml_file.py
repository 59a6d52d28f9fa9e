"""One reader of TOML files: what is wrong is said in one form, whichever file it is, word for word here."""

from __future__ import annotations

from pathlib import Path

import pytest

from kant.model.elastic import Contract
from kant.model.errors import InputError
from kant.service.notices import read_notices
from kant.service.tokens import parse_keys
from kant.serving.services_file import read_tables
from kant.toml_file import parse_toml, read_text
from kant.workload.tenants_file import QueueFile

SERVICE = '[[service]]\nname = "chat"\nmodel = "m"\ngpu = "a100"\nttft_s = 1\ntpot_s = 1\n'
KNOWN = ", ".join(("user", "role", "sha256", "queues", "made"))
WRONG = {
    "no TOML": (read_tables, "a = ", "f.toml: expected TOML (Invalid value (at end of document))"),
    "nothing": (read_tables, "", "f.toml: expected at least one [[service]]"),
    "a number": (read_tables, "service = 3", "f.toml, service: expected [[service]] tables, got 3"),
    "what is missing": (read_tables, "[[service]]", "f.toml, [[service]] 1: expected the key name, text"),
    "a choice": (
        read_tables,
        SERVICE + 'scale = "up"',
        "f.toml, [[service]] 1, scale: expected one of forecast, utilisation, static, got 'up'",
    ),
    "a list": (
        read_tables,
        SERVICE + SERVICE + "gpu_models = [1]",
        "f.toml, [[service]] 2, gpu_models 1: expected text, got 1",
    ),
    "a table within": (
        read_tables,
        SERVICE + '[service.kubernetes]\nburst = "x"',
        "f.toml, [[service]] 1, kubernetes: expected only the keys bursts, namespace, got 'burst'",
    ),
    "a notice": (read_notices, "allow = 3", "f.toml, allow: expected a list, each text, got 3"),
    "a key of a notice": (read_notices, "[[notice]]\nqueue = 1", "f.toml, [[notice]] 1, queue: expected text, got 1"),
    "a token": (
        lambda path: parse_keys(path.read_text(), str(path), "me"),
        '[[token]]\nuser = "a"\nrole = "king"\nsha256 = "b"',
        "f.toml, [[token]] 1, role: expected one of viewer, tenant, operator, got 'king'",
    ),
    "a key of a token": (
        lambda path: parse_keys(path.read_text(), str(path), "me"),
        '[[token]]\nuser = "a"\nrole = "viewer"\nsha256 = "' + "0" * 64 + '"\nx = 1',
        f"f.toml, [[token]] 1: expected only the keys {KNOWN}, got 'x'",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_in_one_form(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, text, said = WRONG[case]
    monkeypatch.chdir(tmp_path)
    Path("f.toml").write_text(text)
    with pytest.raises(InputError) as refused:
        read(Path("f.toml"))
    assert str(refused.value) == said


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none.toml: expected a file that can be read \(No such file or directory\)"):
        read_text(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b"a = '\xe4'")
    with pytest.raises(InputError, match=r"latin.toml: expected text in UTF-8 \("):
        read_text(tmp_path / "latin.toml")


def test_a_value_under_a_free_key_is_found() -> None:
    with pytest.raises(InputError) as refused:
        parse_toml("f", "[prices]\nT4 = 1\nA10 = 'dear'", QueueFile, {"prices.*": "a price"})
    assert str(refused.value) == "f, prices, A10: expected a price, got 'dear'"
    with pytest.raises(InputError, match="f, prices, A10: expected a whole number or a number, got 'dear'"):
        parse_toml("f", "[prices]\nA10 = 'dear'", QueueFile)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("least_gpus = 0", "least_gpus: expected a whole number from 1 to 100,000, got 0"),
        ("tail = 'half'", "tail: expected a number from 0 to 0.5, got 'half'"),
        ("warmup = -1", "warmup: expected a number from 0, got -1"),
        ("[rate]\namplitude = 0", "rate, amplitude: expected a number above 0, got 0"),
        ("[rate]\namplitude = 1\nbatch_power = 3", "rate, batch_power: expected a number from -2 to 2, got 3"),
        ("[batch]\nleast = 1", "batch: expected the key most, a whole number from 1 to 1,000,000"),
    ],
)
def test_bounds_of_a_number_are_named(text: str, expected: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_toml("f", text, Contract)
    assert str(refused.value) == f"f, {expected}"
