"""Positions cut as tokens are: a share of 0, 1, 2, .. beside the same share of a token domain counts those tokens."""

from __future__ import annotations

from typing import Any

from layoutcheck.domains import Domain, Factor, factor, is_token_like
from layoutcheck.layouts import Layout, replace
from layoutcheck.symbols import Size

Cut = tuple[int, Size, Size, Size]


def counts_rows(domain: Domain) -> bool:
    """Whether a domain is 0, 1, 2, .., padded or not."""
    return domain.kind == "iota" or (domain.kind == "pad" and domain.args[0].kind == "iota")


def _cuts(of: Layout) -> list[tuple[Cut, Domain]]:
    return [((m, b.stride, b.extent, b.domain.extent), b.domain) for m, fs in of.bound for b in fs]


def settled(slots: tuple[Any, ...]) -> tuple[Any, ...]:
    """Operands in which cut positions are named by the tokens of another operand that is cut the same way."""
    if not any(isinstance(s, Layout) and s.bound and any(counts_rows(d) for _, d in _cuts(s)) for s in slots):
        return slots
    tokens: dict[Cut, Domain] = {}
    for s in slots:
        if isinstance(s, Layout):
            for cut, domain in _cuts(s):
                if is_token_like(domain) and not counts_rows(domain):
                    tokens.setdefault(cut, domain)
    if not tokens:
        return slots
    return tuple(_named(s, tokens) if isinstance(s, Layout) else s for s in slots)


def _named(of: Layout, tokens: dict[Cut, Domain]) -> Layout:
    names = {d: tokens[cut] for cut, d in _cuts(of) if counts_rows(d) and cut in tokens}
    if not names:
        return of

    def named(f: Factor) -> Factor:
        domain = names.get(f.domain)
        return f if domain is None else factor(domain, f.stride, f.extent)

    return replace(
        of,
        axes=tuple(tuple(named(f) for f in axis) for axis in of.axes),
        bound={m: tuple(named(b) for b in fs) for m, fs in of.bound},
    )
