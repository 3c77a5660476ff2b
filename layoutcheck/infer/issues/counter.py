"""A counter-example to a pair of operands that hold different tokens: the least rank on which they differ, and the tokens."""

from __future__ import annotations

from layoutcheck.domains import Factor, describe
from layoutcheck.infer.calls.call import Issue
from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.infer.solver.run import Key
from layoutcheck.layouts import Layout, bound_on_axis
from layoutcheck.symbols import Size


def counter_example(analysis: Analysis, key: Key, issue: Issue) -> tuple[str, ...]:
    """`p=4, T=16, rank 1: got tokens 0..3, want 4..7`, where one operand is a share and the other the same rows everywhere."""
    if issue.code != "LC102":
        return ()
    tensors = [of for s in issue.operands if 0 <= s < len(key) - 1 and isinstance(of := key[1 + s], Layout)]
    share = next((found for of in tensors if (found := _share(analysis, of)) is not None), None)
    if share is None:
        return ()
    whole, each, ways = share
    for of in tensors:
        for axis in of.axes:
            if len(axis) != 1 or not axis[0].is_whole or axis[0].extent != each:
                continue
            domain = axis[0].domain
            if domain.kind == "iota":
                return _said(whole, each, ways, 0, "positions")
            if domain.kind == "range" and domain.args[0].domain is whole.domain:
                return _said(whole, each, ways, domain.args[1], "tokens")
    return ()


def _share(analysis: Analysis, of: Layout) -> tuple[Factor, Size, Size] | None:
    """The tokens of which an operand holds a rank's share: all of them, the rows of a rank, the number of ranks."""
    for dim, axis in enumerate(of.axes):
        cuts = [m for m, b in bound_on_axis(of, dim) if not b.domain.is_feature]
        if cuts and len(axis) == 1:
            return axis[0].domain.whole, axis[0].extent, analysis.solution.runner.ctx.ways(tuple(cuts))
    return None


def _said(whole: Factor, each: Size, ways: Size, start: Size, what: str) -> tuple[str, ...]:
    if not isinstance(start, int):
        return ()
    total = whole.extent
    if not (isinstance(each, int) and isinstance(ways, int) and isinstance(total, int)):
        if start:
            return ()
        # Any even share will do, and this is the least.
        each, ways, total = 2, 2, 4
    rank = next((r for r in range(ways) if r * each != start), 0)
    got, want = f"{start}..{start + each - 1}", f"{rank * each}..{(rank + 1) * each - 1}"
    name = describe(whole.domain)
    return (f"counter-example  p={ways}, {name}={total}, rank {rank}: got {what} {got}, want {want}",)
