"""Inputs on which a finding shows: ranks, tokens, seed, and the rank and rows that differ from one device.

What cannot be shown is conservative: the graph as it is gives the right numbers for all inputs that were tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from layoutcheck.errors import InputError
from layoutcheck.graph import Graph
from layoutcheck.infer.analysis import Analysis
from layoutcheck.ranks.interpreter import missing
from layoutcheck.ranks.verify import Verdict, ranks_of, symbols_of, verify

FORMAT = "layoutcheck-counterexample/1"
SHOWN = ("LC1", "LC2", "LC4")


@attrs.frozen
class CounterExample:
    """A run that goes wrong: `node` is the first value that differs from one device, `detail` how, on which
    rank and rows.
    """

    world: int
    tokens: int
    seed: int
    node: str
    detail: str

    def __str__(self) -> str:
        return f"p={self.world}, T={self.tokens}, seed {self.seed}: {self.node}: {self.detail}"

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {"format": FORMAT, **attrs.asdict(self)}

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
        return cls(**{name: data[name] for name in kinds})


def token_counts(analysis: Analysis) -> list[int]:
    """Token counts to try: around the number of ranks where sizes are symbolic, else the graph's own."""
    if not symbols_of(analysis, 1):
        shapes = [getattr(n.meta, "shape", ()) for n in analysis.graph.nodes if n.op == "placeholder"]
        return [max((int(s[0]) for s in shapes if s and isinstance(s[0], int)), default=1)]
    world = ranks_of(analysis, symbols_of(analysis, 1)).world
    return sorted({1, max(world - 1, 1), world, world + 1, 2 * world, 2 * world + 1})


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
                return _of(verdict, count, seed)
    if not tried and misfit is not None:
        raise misfit
    return None


def _of(verdict: Verdict, tokens: int, seed: int) -> CounterExample:
    node, detail = verdict.first or ("", verdict.error or "")
    return CounterExample(verdict.world, tokens, seed, node, f"{verdict.place}{detail}")


def replay(
    analysis: Analysis, example: CounterExample, graphs: Sequence[Graph] | None = None
) -> CounterExample | None:
    """Run a counter-example again; None where it does not go wrong any more.

    Raises:
        InputError: as `find`; or the graph's mesh has another size than the counter-example.
    """
    world = ranks_of(analysis, symbols_of(analysis, example.tokens)).world
    if world != example.world:
        raise InputError(f"the graph runs on {world} ranks, the counter-example on {example.world}", "replay")
    verdict = verify(analysis, tokens=example.tokens, seed=example.seed, graphs=graphs)
    return None if verdict.equal else _of(verdict, example.tokens, example.seed)


def explain(analysis: Analysis, codes: Sequence[str], graphs: Sequence[Graph] | None = None) -> str | None:
    """A line for a finding of these codes: its counter-example, that it is conservative, or None where the
    graph cannot be run.
    """
    if not any(code.startswith(SHOWN) for code in codes) or missing(analysis.graph):
        return None
    try:
        found = find(analysis, graphs=graphs)
    except InputError:
        return None
    if found is None:
        return "conservative: the runs that were tried agree with one device"
    return f"counter-example: {found}"
