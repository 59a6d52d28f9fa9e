"""`kant.policies`: all policies, as a frame."""

from __future__ import annotations

import polars as pl

from kant.api.catalogue import catalogue, check_tag, chosen
from kant.model.taxonomy_keys import TAXONOMY


def policies(**where: str) -> pl.DataFrame:
    """Return a row for each policy of Kant and of installed packages, with its tags: `policies(method="learned")`.

    The keys and values are those of the taxonomy (docs/taxonomy.md); several values of one key are separated by spaces,
    and all must match. The columns are `kind`, `policy`, `about`, `source`, `package` and the ten keys, whose values
    are lists. Raises InputError for an unknown key or value.
    """
    pairs = [check_tag(key, value, "policies") for key, values in where.items() for value in values.split() or [""]]
    rows = [
        {"kind": entry.kind, "policy": entry.policy, "about": entry.about, "source": entry.source}
        | {"package": entry.package}
        | {key: list(entry.tags.get(key, ())) for key in TAXONOMY}
        for entry in chosen(catalogue(), pairs)
    ]
    texts = dict.fromkeys(("kind", "policy", "about", "source", "package"), pl.String)
    return pl.DataFrame(rows, schema={**texts, **dict.fromkeys(TAXONOMY, pl.List(pl.String))})
