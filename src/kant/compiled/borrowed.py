"""Lowering that does not count references to what a function only borrows.

By default Numba counts a reference for each variable that holds an array, also for arguments and for what is read from
them: one atomic increment and decrement for each array of each tuple, at each call. A caller keeps its arguments until
the call ends, so a variable that is assigned once, to an argument or a part of one, needs no count of its own. Whoever
takes such a value over, as a result, in a tuple or in a variable assigned twice, counts it as before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numba.core import ir, types
from numba.core.compiler_machinery import register_pass
from numba.core.lowering import Lower
from numba.core.typed_passes import NativeLowering


class BorrowingLower(Lower):  # type: ignore[misc]
    """Numba's lowering, without counts for variables that borrow."""

    def init(self) -> None:
        super().init()
        assigns = [inst for block in self.blocks.values() for inst in block.find_insts(ir.Assign)]
        times = Counter(inst.target.name for inst in assigns)
        rest, self._borrowing = [inst for inst in assigns if times[inst.target.name] == 1], set[str]()
        while found := [inst for inst in rest if self._borrows(inst.value)]:
            self._borrowing.update(inst.target.name for inst in found)
            rest = [inst for inst in rest if inst.target.name not in self._borrowing]

    def _borrows(self, value: Any) -> bool:
        """Return whether `value` is an argument, or a part of a borrowed tuple or array."""
        if isinstance(value, ir.Arg):
            return True
        if isinstance(value, ir.Var):
            return value.name in self._borrowing
        if not isinstance(value, ir.Expr) or value.op not in _PARTS or value.value.name not in self._borrowing:
            return False
        whole = self.typeof(value.value.name)
        if not isinstance(whole, types.Array):
            return isinstance(whole, types.BaseTuple)
        index = self.typeof(value.index.name) if value.op == "getitem" else types.intp
        parts = index if isinstance(index, types.BaseTuple) else (index,)
        shares = all(isinstance(part, types.Integer | types.SliceType) for part in parts)  # others copy
        return shares and value.op != "getattr"

    def lower_assign(self, ty: Any, inst: Any) -> Any:
        with self._uncounted(inst.target.name):
            return super().lower_assign(ty, inst)

    def storevar(self, value: Any, name: str, argidx: int | None = None) -> None:
        with self._uncounted(name):
            super().storevar(value, name, argidx)

    def delvar(self, name: str) -> None:
        with self._uncounted(name):
            super().delvar(name)

    @contextmanager
    def _uncounted(self, name: str) -> Iterator[None]:
        """Emit no counts if `name` borrows."""
        counts = vars(self.context.nrt)
        if name not in self._borrowing:
            yield
            return
        counts |= {"incref": _nothing, "decref": _nothing}
        try:
            yield
        finally:
            del counts["incref"], counts["decref"]


MACHINE_CODE = "borrows"
"""A name of what this lowering makes, for the cache: another one makes other code of the same kernel."""

_PARTS = ("getattr", "static_getitem", "getitem", "exhaust_iter")
"""What reads a part of a tuple or of an array, and allocates nothing."""


def _nothing(builder: Any, kind: Any, value: Any) -> None:
    pass


@register_pass(mutates_CFG=True, analysis_only=False)
class BorrowingLowering(NativeLowering):  # type: ignore[misc]
    """Numba's pass, with the lowering above."""

    _name = "borrowing_lowering"

    @property
    def lowering_class(self) -> type[Lower]:
        return BorrowingLower
