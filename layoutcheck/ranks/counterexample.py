"""Inputs on which a finding shows: ranks, tokens, seed, and the rank and rows that differ from one device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from layoutcheck.errors import InputError
from layoutcheck.graph import Graph
from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.layouts import Layout
from layoutcheck.ranks.verify import Verdict, ranks_of, values_of, verify

FORMAT = "layoutcheck-counterexample/1"


@attrs.frozen
class CounterExample:
    """A run that goes wrong: `node` is the first value that differs from one device, `detail` how, on which
    rank and rows. `after` are values that differ before it, for other reasons, and were put right.
    """

    world: int
    tokens: int
    seed: int
    node: str
    detail: str
    after: tuple[str, ...] = ()

    def __str__(self) -> str:
        n = len(self.after)
        put = f" (with {n} earlier difference{'s' if n > 1 else ''} put right)" if n else ""
        return f"p={self.world}, T={self.tokens}, seed {self.seed}: {self.node}: {self.detail}{put}"

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {"format": FORMAT, **attrs.asdict(self), "after": list(self.after)}

    @classmethod
    def from_dict(cls, data: Any) -> CounterExample:
        """Read the JSON form.

        Raises:
            InputError: it is something else.
        """
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise InputError(f"not a {FORMAT} file", "replay")
        kinds = {"world": int, "tokens": int, "seed": int, "node": str, "detail": str}
        for name, kind in kinds.items():
            if not isinstance(data.get(name), kind) or isinstance(data.get(name), bool):
                raise InputError(f"{name} is missing or not a {kind.__name__}", "replay")
        after = data.get("after", [])
        if not isinstance(after, list) or not all(isinstance(name, str) for name in after):
            raise InputError("after is not a list of names", "replay")
        return cls(**{name: data[name] for name in kinds}, after=tuple(after))


def token_counts(analysis: Analysis) -> list[int]:
    """Token counts to try: around the number of ranks where sizes are symbolic, else the graph's own."""
    if not values_of(analysis, 1):
        return [_own_tokens(analysis)]
    world = ranks_of(analysis, values_of(analysis, 1)).world
    return sorted({1, max(world - 1, 1), world, world + 1, 2 * world, 2 * world + 1})


def _own_tokens(analysis: Analysis) -> int:
    """The tokens of a graph without symbols: the extent of its largest domain of tokens."""
    extents = [1]
    for of in analysis.solution.typing.types:
        if isinstance(of, Layout):
            domains = [f.domain for axis in of.axes for f in axis if f.domain.kind == "token"]
            extents += [d.extent for d in domains if isinstance(d.extent, int)]
    return max(extents)


def find(
    analysis: Analysis,
    *,
    graphs: Sequence[Graph] | None = None,
    seeds: int = 2,
    tokens: Sequence[int] | None = None,
) -> CounterExample | None:
    """The smallest run found that differs from one device; None where all that were tried agree.

    Raises:
        InputError: an op has no reference implementation, or the graph is too large to run.
    """
    misfit: InputError | None = None
    tried = 0
    for count in tokens if tokens is not None else token_counts(analysis):
        for seed in range(seeds):
            try:
                verdict = verify(analysis, tokens=count, seed=seed, graphs=graphs)
            except InputError as error:
                misfit = error  # this count does not fit the graph's divisibility
                continue
            tried += 1
            if not verdict.equal:
                return example_of(verdict, count, seed)
    if not tried and misfit is not None:
        raise misfit
    return None


def example_of(verdict: Verdict, tokens: int, seed: int, after: Sequence[str] = ()) -> CounterExample:
    """The counter-example that a run is which differs."""
    node, detail = verdict.first or ("", verdict.error or "")
    return CounterExample(verdict.world, tokens, seed, node, f"{verdict.place}{detail}", tuple(after))
