"""The TOML file of a learned order: its weights by name."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from kant.model.errors import InputError
from kant.optimize.workflow.policies.learned import LearnedRule
from kant.optimize.workflow.train import WEIGHTS
from kant.toml_file import parse_tree, read_text


def weights_toml(policy: LearnedRule) -> str:
    """The weights as the text of a file."""
    return "".join(f"{name} = {asdict(policy)[name]}\n" for name in WEIGHTS)


def read_weights(path: Path) -> LearnedRule:
    """Read the learned order of a file. Raises InputError with the file and the key."""
    tree = parse_tree(str(path), read_text(path))
    for name in (*tree, *WEIGHTS):
        if name not in WEIGHTS:
            raise InputError(f"{path}, {name}", f"only the keys {', '.join(WEIGHTS)}", name)
        value = tree.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= 1e6:
            raise InputError(f"{path}, {name}", "a weight from -1,000,000 to 1,000,000", value)
    return LearnedRule(**{name: float(tree[name]) for name in WEIGHTS})
