"""Passes a named tuple to a compiled function as one value. By default Numba splits it into hundreds of arguments."""

from __future__ import annotations

from typing import Any

from numba.core import types
from numba.core.datamodel.models import TupleModel
from numba.extending import register_model


@register_model(types.NamedTuple)
class WholeTupleModel(TupleModel):  # type: ignore[misc]
    """Numba's layout of a named tuple, with the same representation as an argument and as a value."""

    def get_argument_type(self) -> Any:
        return self.get_value_type()

    def as_argument(self, builder: Any, value: Any) -> Any:
        return value

    def from_argument(self, builder: Any, value: Any) -> Any:
        return value


MACHINE_CODE = "whole named tuples"  # a name of this layout, for the cache
