"""What running shows of a report's findings: for each one a run that goes wrong there, or that none was found.

The graph runs on ranks beside one device. The first value that differs belongs to the finding at its node, or to the one
nearest upstream; that value is then put right on all ranks and the graph runs again, so that what the next finding does shows
by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from layoutcheck.errors import InputError
from layoutcheck.findings import Finding
from layoutcheck.graph import Graph
from layoutcheck.infer.issues.entries import downstream
from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.program import PLACEHOLDER
from layoutcheck.ranks.counterexample import CounterExample, example_of, token_counts
from layoutcheck.ranks.denote import Undenoted
from layoutcheck.ranks.verify import Verdict, compare, prepare

SHOWN = ("LC1", "LC2")
SEEDS = 2
MORE = 8
"""Differences that belong to no finding and are passed over, in a run."""


@attrs.frozen
class Tried:
    """Runs that were made: ranks, token counts, seeds of each."""

    world: int
    tokens: tuple[int, ...]
    seeds: int


@attrs.frozen
class Shown:
    """A finding's counter-example; where there is none, why: no run differs there (`tried`), or nothing could be run."""

    example: CounterExample | None = None
    tried: Tried | None = None
    reason: str = ""

    @property
    def status(self) -> str:
        """`differs`, `conservative` or `not run`."""
        if self.example is not None:
            return "differs"
        return "conservative" if self.tried is not None else "not run"

    def to_dict(self) -> dict[str, Any]:
        """The JSON form; that of a counter-example can be replayed."""
        out: dict[str, Any] = {"status": self.status}
        if self.example is not None:
            out |= self.example.to_dict()
        elif self.tried is not None:
            out |= {"world": self.tried.world, "tokens": list(self.tried.tokens), "seeds": self.tried.seeds}
        else:
            out["reason"] = self.reason
        return out

    def line(self) -> str:
        """A line for a reader."""
        if self.example is not None:
            return f"counter-example  {self.example}"
        if self.tried is not None:
            counts = ", ".join(map(str, self.tried.tokens))
            return f"conservative  no run differs here: p={self.tried.world}, T={counts}, {self.tried.seeds} seeds"
        return f"not run  {self.reason}"


@attrs.define
class _Repairs:
    """Values put right so far, in order: per rank by node and output; and outputs that are known to differ."""

    instead: list[dict[str, dict[int | None, Any]]]
    known: set[tuple[int, int]] = attrs.field(factory=set)
    names: list[str] = attrs.field(factory=list)

    def add(self, analysis: Analysis, verdict: Verdict) -> bool:
        """Put right what a verdict shows; False where that cannot be done."""
        twin, p = verdict.twin, analysis.program
        if verdict.first is None or twin is None or twin.value < 0:
            return False
        name = verdict.first[0] if twin.slot is not None else p.nodes[p.value_call[twin.value]].name
        mark = f"{name}:{twin.slot}" if twin.slot is not None else f"{name}/{p.name_of(twin.value)}"
        if mark in self.names:
            return False
        self.names.append(mark)
        if twin.slot is not None:
            self.known.add((p.node_call[name], twin.slot))
            return True
        if twin.right is None:
            return False
        call = p.value_call[twin.value]
        at = twin.value - p.first[call] if p.outs[call] > 1 or _gives_list(analysis, call) else None
        for mine, value in zip(self.instead, twin.right):
            mine.setdefault(name, {})[at] = value
        return True


def _gives_list(analysis: Analysis, call: int) -> bool:
    return isinstance(analysis.program.nodes[call].meta, tuple)


def show(
    analysis: Analysis, findings: Sequence[Finding], graphs: Sequence[Graph] | None = None
) -> dict[int, Shown]:
    """What running shows of findings LC1xx and LC2xx, by their place in the list."""
    open_ = {i: f for i, f in enumerate(findings) if f.code.startswith(SHOWN)}
    wanted = list(open_)
    found: dict[int, Shown] = {}
    tried: set[int] = set()
    world, reason = 0, "no number of tokens fits the graph"
    try:
        counts = token_counts(analysis)
    except InputError as error:
        counts, reason = [], str(error)
    for tokens in counts:
        for seed in range(SEEDS):
            if not open_:
                break
            try:
                run = _Search(analysis, open_, graphs, tokens, seed)
                new, complete = run.examples()
            except InputError as error:
                reason = str(error)
                continue
            world = run.ranks.world
            for i, example in new.items():
                found[i] = Shown(example)
                del open_[i]
            if complete:
                tried.add(tokens)
            elif not tried:
                reason = run.stopped
    rest = Shown(tried=Tried(world, tuple(sorted(tried)), SEEDS)) if tried else Shown(reason=reason)
    return {i: found.get(i, rest) for i in wanted}


class _Search:
    """One number of tokens and one seed."""

    def __init__(
        self,
        analysis: Analysis,
        findings: dict[int, Finding],
        graphs: Sequence[Graph] | None,
        tokens: int,
        seed: int,
    ) -> None:
        self.analysis, self.findings, self.tokens, self.seed = analysis, dict(findings), tokens, seed
        self.ranks, self.programs, self.wholes = prepare(analysis, tokens=tokens, seed=seed, graphs=graphs)
        self.repairs = _Repairs([{} for _ in self.programs])
        self.stopped = ""

    def verdict(self) -> Verdict:
        """Run with what has been put right. Raises InputError where the tokens do not fit the graph."""
        given = {k: v.clone() for k, v in self.wholes.items()}
        repairs = self.repairs
        try:
            return compare(
                self.analysis,
                self.ranks,
                self.programs,
                given,
                self.seed,
                instead=repairs.instead,
                known=frozenset(repairs.known),
            )
        except Undenoted as error:
            raise InputError(f"{self.tokens} tokens do not fit the graph: {error}", "verify") from None

    def examples(self) -> tuple[dict[int, CounterExample], bool]:
        """Counter-examples by finding, and whether the run came to its end with all of them put right."""
        out: dict[int, CounterExample] = {}
        for _ in range(2 * len(self.findings) + MORE):
            verdict = self.verdict()
            if verdict.first is None:
                return out, True
            mine = self._owner(verdict, out)
            if mine is not None and mine not in out:
                out[mine] = example_of(verdict, self.tokens, self.seed, tuple(self.repairs.names))
            if len(out) == len(self.findings):
                return out, True
            if not self.repairs.add(self.analysis, verdict):
                self.stopped = f"the run ends at {verdict.first[0]}: {verdict.first[1]}"
                return out, False
        self.stopped = "too many values differ"
        return out, False

    def _owner(self, verdict: Verdict, explained: dict[int, CounterExample]) -> int | None:
        """The finding that a difference belongs to."""
        assert verdict.first is not None
        node, p = verdict.first[0], self.analysis.program
        left = {i: f for i, f in self.findings.items() if i not in explained}
        value = verdict.twin.value if verdict.twin is not None else -1
        names = {node, p.nodes[p.value_call[value]].name if value >= 0 else node}
        for i, f in left.items():
            if f.node in names:
                return i
        if verdict.error is not None:
            return None  # that it does not run shows a finding only where it says so
        for i, f in left.items():
            if names & {name for _, name in f.consequences}:
                return i
        calls = {p.node_call[f.node]: i for i, f in left.items() if f.node in p.node_call}
        written = p.node_call.get(node)
        if written is not None and p.kind[written] == PLACEHOLDER:  # an input that was written into
            after = downstream(self.analysis, written)
            return next((i for call, i in calls.items() if call in after), None)
        seen: set[int] = set()
        todo = [p.value_call[value]] if value >= 0 else []
        for call in todo:  # grows: the nearest ones first
            if call in calls:
                return calls[call]
            for v in p.inputs[call]:
                if p.value_call[v] not in seen:
                    seen.add(p.value_call[v])
                    todo.append(p.value_call[v])
        upstream = [i for i, f in left.items() if names & {s.node for s in f.path}]
        return upstream[0] if upstream else None


def rank_graphs(analysis: Analysis, others: Sequence[Graph]) -> list[Graph] | None:
    """The graph of every rank, where exports of all of them are given; None where not, and they are to be made."""
    by_rank = {g.rank: g for g in (analysis.graph, *others)}
    world = len(others) + 1
    return [by_rank[r] for r in range(world)] if others and set(by_rank) == set(range(world)) else None


def with_counter_examples(
    analysis: Analysis, findings: Sequence[Finding], graphs: Sequence[Graph] | None = None
) -> tuple[Finding, ...]:
    """The findings with what running shows of each."""
    shown = show(analysis, findings, graphs)
    return tuple(
        attrs.evolve(f, details=(*f.details, shown[i].line()), counter_example=shown[i].to_dict())
        if i in shown
        else f
        for i, f in enumerate(findings)
    )


def replay(
    analysis: Analysis, example: CounterExample, graphs: Sequence[Graph] | None = None
) -> CounterExample | None:
    """Run a counter-example again, with what it says was put right; None where it does not go wrong any more.

    Raises:
        InputError: as `verify.verify`; or the graph's mesh has another size than the counter-example.
    """
    run = _Search(analysis, {}, graphs, example.tokens, example.seed)
    if run.ranks.world != example.world:
        raise InputError(
            f"the graph runs on {run.ranks.world} ranks, the counter-example on {example.world}", "replay"
        )
    while True:
        verdict = run.verdict()
        if verdict.first is None:
            return None
        before = tuple(run.repairs.names)
        if not (run.repairs.add(analysis, verdict) and run.repairs.names[-1] in example.after):
            return example_of(verdict, example.tokens, example.seed, before)
