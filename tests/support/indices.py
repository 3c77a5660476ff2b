"""Which element of a domain each element of a tensor is, as numpy arrays: the reference for factor algebra.

An element of an axis made of digits has one value per digit; the digit's value times its stride adds to the domain's index,
and so does the rank's coordinate times the stride of the digit that the rank selects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from hypothesis import strategies as st

from layoutcheck.arguments import Hole
from layoutcheck.domains import Domain, Factor
from layoutcheck.infer.calls.call import Context
from layoutcheck.infer.solver.one_call import apply
from layoutcheck.layouts import Layout
from layoutcheck.mesh import Mesh, build_mesh
from layoutcheck.program import OpInstance
from layoutcheck.rules.rulebook import RuleBook
from layoutcheck.rules.types import Rule
from layoutcheck.symbols import Size

Array = Any  # a numpy array of int64
Indices = dict[Domain, Array]


def number(size: Size) -> int:
    """A size that is a number."""
    assert isinstance(size, int)
    return size


def nested(domain: Domain) -> int:
    """How deep products of products are nested."""
    return 1 + max(nested(part.domain) for part in domain.args) if domain.kind == "flat" else 0


def _settled(raw: Indices) -> Indices:
    """Indices of base domains: that of a product of factors is an index of each of them, once it is complete."""
    found = dict(raw)
    while True:
        outer = max(found, key=nested, default=None)
        if outer is None or outer.kind != "flat":
            return found
        index, inner = found.pop(outer), number(outer.extent)
        for part in outer.args:
            inner //= part.extent
            _add(found, part.domain, index // inner % part.extent * part.stride)


def _add(found: Indices, domain: Domain, index: Array) -> None:
    found[domain] = found[domain] + index if domain in found else index


def of_factors(factors: Sequence[Factor]) -> Indices:
    """Per base domain the index of each element of one axis."""
    return _settled(_raw(factors))


def _raw(factors: Sequence[Factor]) -> Indices:
    shape = tuple(number(f.extent) for f in factors)
    raw: Indices = {}
    for i, f in enumerate(factors):
        digit = np.arange(shape[i]).reshape([-1 if k == i else 1 for k in range(len(shape))])
        _add(raw, f.domain, np.broadcast_to(digit * number(f.stride), shape).reshape(-1))
    return raw


def held(of: Layout, at: Mapping[int, int]) -> Indices:
    """Per base domain the index of each element of a tensor on the rank with these coordinates."""
    raw: Indices = {}
    shape = tuple(map(number, of.shape))
    for i, axis in enumerate(of.axes):
        for domain, index in _raw(axis).items():
            line = index.reshape([-1 if k == i else 1 for k in range(of.rank)])
            _add(raw, domain, np.broadcast_to(line, shape))
    for m, factors in of.bound:
        for b in factors:
            _add(raw, b.domain, np.full(shape, at[m] * number(b.stride)))
    return _settled(raw)


def same(left: Indices, right: Indices) -> bool:
    """Whether two tensors' elements are the same elements of the same domains."""
    return left.keys() == right.keys() and all(np.array_equal(left[d], right[d]) for d in left)


def coordinates(mesh: Mesh) -> Iterator[dict[int, int]]:
    """The coordinates of all ranks."""
    ranges = [range(number(axis.size)) for axis in mesh.axes]
    for chosen in product(*ranges):
        yield dict(enumerate(chosen))


def mesh_of(**sizes: int) -> Mesh:
    """A mesh with one axis a name."""
    return build_mesh([], {**sizes})


_BOOK = RuleBook.load()


def call(mesh: Mesh, rule: Rule | str, *slots: Any, returns: int = 1, **literals: Any) -> Any:
    """The answer of a rule (or of the rule of a target) on layouts in the order of its parameters."""
    found = _BOOK.lookup(rule) if isinstance(rule, str) else rule
    assert found is not None
    params = found.bind([Hole(i) for i in range(len(slots))], literals)
    return apply(Context(mesh, None), OpInstance(found.target, found, params, len(slots), returns), slots)


def divisors(n: int) -> list[int]:
    """The divisors of n in order."""
    return [d for d in range(1, n + 1) if n % d == 0]


@st.composite
def cuts(draw: st.DrawFn, n: int, most: int = 4) -> list[int]:
    """An ordered way to write n as a product of numbers above 1 (none for n = 1)."""
    out: list[int] = []
    while n > 1 and len(out) < most - 1:
        d = draw(st.sampled_from(divisors(n)[1:]))
        out.append(d)
        n //= d
    return out + [n] if n > 1 else out
