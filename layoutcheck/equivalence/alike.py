"""Comparing layouts of two programs: the same up to the names of token domains.

A token domain (or a domain variable) of one program stands for one of the other; which one is fixed where they first meet. Derived
domains are compared by how they are derived.
"""

from __future__ import annotations

from typing import Any

from layoutcheck.domains import TOKEN, VARIABLE, Domain, Factor
from layoutcheck.layouts import Layout
from layoutcheck.mesh import Mesh

_NAMED = frozenset((TOKEN, VARIABLE))


class Alike:
    """Remembers which domains of `a` and `b` stand for each other."""

    def __init__(self, a: Mesh, b: Mesh) -> None:
        self._to: dict[Domain, Domain] = {}
        self._back: dict[Domain, Domain] = {}
        self._axis = _axis_map(a, b)

    @property
    def groups_match(self) -> bool:
        """Whether both programs have the same mesh axes by name and size."""
        return self._axis is not None

    def layouts(self, a: Any, b: Any) -> bool:
        """Whether two values have the same layout. What is no layout (a size, nothing) is compared as it is."""
        if not isinstance(a, Layout) or not isinstance(b, Layout):
            return bool(a == b) if isinstance(a, Layout) == isinstance(b, Layout) else False
        return self._axes_match(a, b)

    def _axes_match(self, a: Layout, b: Layout) -> bool:
        axis = self._axis
        if axis is None or a.dtype != b.dtype or len(a.axes) != len(b.axes):
            return False
        if tuple(sorted(axis[m] for m in a.partial)) != tuple(sorted(b.partial)):
            return False
        if len(a.bound) != len(b.bound):
            return False
        for x, y in zip(a.axes, b.axes):
            if not self._factors(x, y):
                return False
        other = b.bound_map
        for m, factors in a.bound:
            found = other.get(axis[m])
            if found is None or not self._factors(factors, found):
                return False
        return (a.value is None) == (b.value is None) and self._args(a.value, b.value)

    def _factors(self, x: tuple[Factor, ...], y: tuple[Factor, ...]) -> bool:
        return len(x) == len(y) and all(self._factor(f, g) for f, g in zip(x, y))

    def _factor(self, f: Factor, g: Factor) -> bool:
        return f.stride == g.stride and f.extent == g.extent and self._domain(f.domain, g.domain)

    def _domain(self, d: Domain, e: Domain) -> bool:
        if d.extent != e.extent:
            return False
        if d.kind in _NAMED and e.kind in _NAMED:
            known, back = self._to.get(d), self._back.get(e)
            if known is None and back is None:
                self._to[d], self._back[e] = e, d
                return True
            return known is e and back is d
        if d.kind != e.kind:
            return False
        if d is e and d.is_feature:
            return True
        known = self._to.get(d)
        if known is not None:
            return known is e
        if self._args(d.args, e.args):
            self._to[d] = e
            return True
        return False

    def _args(self, x: Any, y: Any) -> bool:
        if isinstance(x, Domain):
            return isinstance(y, Domain) and self._domain(x, y)
        if isinstance(x, Factor):
            return isinstance(y, Factor) and self._factor(x, y)
        if isinstance(x, tuple):
            return isinstance(y, tuple) and len(x) == len(y) and all(self._args(p, q) for p, q in zip(x, y))
        if isinstance(x, str):
            # Labels of orders name values, which are called differently.
            return isinstance(y, str)
        return bool(x == y)


def _axis_map(a: Mesh, b: Mesh) -> dict[int, int] | None:
    """Mesh axes of `a` to those of `b` of the same name and size; None where they do not pair up."""
    by_name = {(x.name, x.size): x.index for x in b.axes}
    if len(a.axes) != len(b.axes):
        return None
    found = {x.index: by_name.get((x.name, x.size), -1) for x in a.axes}
    return found if -1 not in found.values() else None
