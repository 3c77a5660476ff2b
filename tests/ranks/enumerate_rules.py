"""Every rule against real values: operand states x result states, p in {1, 2, 3, 4}, token counts around p.

A `Sample` is one call of an op with tensors written as axes of labels (`t (h d)`), where `t`, `s` and `q`
are token domains and all other labels features. The engine is asked what the result is for each combination
of operand states; the op is run on every rank, and on one device for what should come out.

* incorrect: the engine says nothing is wrong, and the rank values do not denote the right tensor under the
  claimed layout (or do not run);
* missing: the engine refuses, and some result state (Full, cut along an axis, Partial) would have denoted
  the right tensor in every trial.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch
from torch import Tensor

from layoutcheck.arguments import Hole
from layoutcheck.graph import DtypeArg
from layoutcheck.infer.calls.call import Context
from layoutcheck.infer.solver.one_call import apply
from layoutcheck.layouts import Layout
from layoutcheck.mesh import build_mesh
from layoutcheck.program import OpInstance
from layoutcheck.ranks.denote import Ranks, placement, share, summands
from layoutcheck.ranks.interpreter import RankError, run_call
from layoutcheck.ranks.reference import real_dtype
from layoutcheck.rules.rulebook import RuleBook

from .calls import (
    FULL,
    TOKENS,
    At,
    Env,
    Sample,
    State,
    Sz,
    X,
    draw,
    dtype_of,
    extent,
    inside,
    layout_for,
    states,
    word,
)
from .judging import check, held, number_of, same_elements, unclaimed

SIZES = (1, 2, 3, 4)


def token_counts(p: int) -> list[int]:
    """Counts around p, where shares are empty, short or uneven."""
    return sorted({1, p - 1, p, p + 1, 2 * p + 1} - {0})


@dataclass
class Trial:
    """One run of a combination: what was claimed, refused, and which result states held."""

    refused: list[str]
    wrong: str | None
    holds: set[str] | None
    claim: str
    kind: str = "claim"


@dataclass
class Verdict:
    """All trials of one combination of operand states."""

    sample: Sample
    states: tuple[State, ...]
    incorrect: list[str] = field(default_factory=list)
    missing: set[str] = field(default_factory=set)
    refusals: set[str] = field(default_factory=set)
    kinds: set[str] = field(default_factory=set)
    trials: int = 0
    empty: int = 0

    def text(self) -> str:
        """The combination in words."""
        parts = []
        for (name, i, x), state in zip(self.sample.operands(), self.states):
            parts.append(f"{name}{'' if i is None else i}[{x.axes}]={word(x, state)}")
        return f"{self.sample.target}({', '.join(parts)}){' ' + self.sample.note if self.sample.note else ''}"


_meshes: dict[tuple[int, int], Context] = {}


def context(p: int, rank: int) -> Context:
    """What the engine knows: a group tp of p ranks."""
    if (p, rank) not in _meshes:
        group = tuple(range(p))
        mesh = (
            build_mesh([group], {}, aliases={"tp": p}, rank=rank, world=p, sharing=[group])
            if p > 1
            else build_mesh([], {}, rank=0)
        )
        _meshes[(p, rank)] = Context(mesh, None, None)
    return _meshes[(p, rank)]


def _literal(value: Any, env: Env, local: Callable[[str, str], int]) -> Any:
    if isinstance(value, Sz):
        return [local(value.of, part) if isinstance(part, str) else part for part in value.parts]
    if isinstance(value, At):
        return value.of(env)
    if isinstance(value, list):
        return [_literal(v, env, local) for v in value]
    return value


def _resolved(
    sample: Sample, tensors: dict[tuple[str, int | None], Any], env: Env, local: Callable[[str, str], int]
) -> dict[str, Any]:
    """Arguments with `tensors` in the place of operands."""
    out: dict[str, Any] = {}
    for name, value in sample.args.items():
        if isinstance(value, X):
            out[name] = tensors[name, None]
        elif inside(value):
            out[name] = _filled(value, iter([tensors[name, i] for i in range(len(inside(value)))]))
        else:
            out[name] = _literal(value, env, local)
    return out


def _filled(value: Any, tensors: Iterator[Any]) -> Any:
    if isinstance(value, X):
        return next(tensors)
    return [_filled(v, tensors) for v in value] if isinstance(value, list) else value


def _flat(value: Any) -> list[Any]:
    return [x for v in value for x in _flat(v)] if isinstance(value, (list, tuple)) else [value]


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value


def _torch_args(args: dict[str, Any]) -> dict[str, Any]:
    return {k: real_dtype(v.name) if isinstance(v, DtypeArg) else v for k, v in args.items()}


def trial(book: RuleBook, sample: Sample, chosen: Sequence[State], p: int, T: int, seed: int) -> Trial | None:
    """Ask the engine and run; None where the op does not run on one device at this size."""
    generator = torch.Generator().manual_seed(seed)
    operands = sample.operands()
    ranks = Ranks((p,) if p > 1 else ())
    layouts = [layout_for(x, s, p, T, dtype_of(x)) for (_, _, x), s in zip(operands, chosen)]
    whole: dict[tuple[str, int | None], Tensor] = {}
    shares: dict[tuple[str, int | None], list[Tensor]] = {}
    for (name, i, x), state, of in zip(operands, chosen, layouts):
        shape = [1 if not labels else _product(extent(y, x, T) for y in labels) for labels in x.labels()]
        value = draw(x, shape, T, generator)
        whole[name, i] = value
        big = value
        if state[0] == "cut":
            axis = state[1]
            want = _global_rows(of, axis, p)
            if want != shape[axis]:
                more = list(shape)
                more[axis] = want - shape[axis]
                big = torch.cat([value, draw(x, more, T, generator)], axis)
        parts = (
            summands(big.to(torch.float64) if big.dtype == torch.int8 else big, p, generator)
            if state[0] == "partial"
            else None
        )
        if parts is not None and big.dtype == torch.int8:
            parts = [q.to(torch.int8) for q in parts]
        shares[name, i] = share(big, of, ranks, parts)
    state_of = {(name, i): (x, s) for (name, i, x), s in zip(operands, chosen)}

    def size(name: str, label: str, local: bool) -> int:
        x, s = state_of[name, None] if (name, None) in state_of else state_of[name, 0]
        n = extent(label, x, T)
        cut_label = x.labels()[s[1]][0] if s[0] == "cut" else ""
        return -(-n // p) if local and label == cut_label else n

    one = Env(None, p, T)
    cut = frozenset(x.labels()[s[1]][0] for (_, _, x), s in zip(operands, chosen) if s[0] == "cut") & set(
        TOKENS
    )
    given = _resolved(sample, dict(whole), one, lambda of, label: size(of, label, False))
    try:
        if sample.expected is not None:
            expected = sample.expected(_torch_args(given), one)
        else:
            alone = _clone(_torch_args(given))
            expected = run_call(sample.target, [alone], lambda r, g: [0])[0]
            expected = _flat(alone[sample.written]) if sample.written else expected
    except (RankError, RuntimeError, IndexError, ValueError, TypeError) as error:
        if sample.expected is not None:
            raise
        del error
        return None
    outs, refused, claims = _claims(
        book, sample, layouts, p, T, size, len(expected) if isinstance(expected, (tuple, list)) else 1
    )
    per_rank = []
    for r in range(p):
        mine = {key: values[r] for key, values in shares.items()}
        args = _resolved(sample, mine, Env(r, p, T, cut), lambda of, label: size(of, label, True))
        per_rank.append(_clone(_torch_args(args)))
    wanted = list(expected) if isinstance(expected, (tuple, list)) else [expected]
    if refused and sample.fragile:
        return Trial(refused, None, None, claims)
    try:
        got = run_call(sample.target, per_rank, lambda r, g: list(range(p)))
    except RankError as error:
        said = {unclaimed(of, ranks) for of in outs if isinstance(of, Layout)}
        if sample.packed and _shards_features(chosen, operands):
            said = {"packed"}
        if refused or (said and None not in said):
            return Trial(refused, None, None, claims, next(iter(said - {None}), None) or "claim")
        return Trial(refused, f"{claims} does not run: {error}", None, claims)
    got = [_flat(a[sample.written]) for a in per_rank] if sample.written else got
    results = [list(g) if isinstance(g, (tuple, list)) else [g] for g in got]
    if any(len(r) != len(wanted) for r in results):
        return Trial(refused, None, None, claims, "other pieces")
    atol = 0.0
    if sample.codes:
        atol = float(wanted[1].abs().max()) * 1.01
        wanted = [number_of(wanted, sample.codes), *wanted[sample.codes :]]
        results = [[number_of(r, sample.codes), *r[sample.codes :]] for r in results]
        outs = [*outs[:1], *outs[sample.codes :]]
    holds: set[str] | None = None
    wrong = None
    kind = "claim"
    for j, want in enumerate(wanted):
        if not isinstance(want, torch.Tensor):
            wrong = wrong or _size_problem([r[j] for r in results], outs[j] if j < len(outs) else None)
            continue
        if sample.shape_only:
            wrong = wrong or _shape_problem([r[j] for r in results], outs[j] if j < len(outs) else None)
            continue
        values = [r[j] for r in results]
        here = held(values, want)
        holds = here if holds is None else holds & here
        if refused or wrong is not None:
            continue
        of = outs[j] if j < len(outs) else None
        if not isinstance(of, Layout):
            wrong = f"what it writes into {sample.written} has no layout" if sample.written else None
            continue
        if (
            sample.conversion
            and unclaimed(of, ranks) is None
            and placement(of, ranks).shape() != tuple(want.shape)
        ):
            problem, what = (
                same_elements(values, of, layout_for(operands[0][2], FULL, p, T, "float32"), want, ranks),
                "claim",
            )
        else:
            problem, what = check(values, of, want, ranks, atol)
        if problem is not None and sample.packed and _shards_features(chosen, operands):
            problem, what = None, "packed"
        if what != "claim":
            kind = what
        elif problem is not None:
            wrong = f"output {j} {claims}: {problem}"
    return Trial(refused, wrong, holds, claims, kind)


def _size_problem(values: Sequence[Any], said: Any) -> str | None:
    """What is wrong with a size: it is each rank's own, and the same on all where the rule says a number."""
    if not isinstance(said, (int, float)) or all(v == said for v in values):
        return None
    return f"the ranks have {values}, not {said}"


def _shape_problem(values: Sequence[Tensor], of: Any) -> str | None:
    """What is wrong with the shapes that the ranks have."""
    shapes = {tuple(v.shape) for v in values}
    if not isinstance(of, Layout) or shapes == {tuple(of.shape)}:
        return None
    return f"the ranks have {sorted(shapes)}, not {tuple(of.shape)}"


def _alike(sample: Sample, chosen: Sequence[State]) -> bool:
    words = [word(x, s) for (_, _, x), s in zip(sample.operands(), chosen)]
    return words[0] == words[1] or ("Partial" in (words[0], words[1]) and not any("(" in w for w in words))


def _shards_features(chosen: Sequence[State], operands: Sequence[tuple[str, int | None, X]]) -> bool:
    return any(s[0] == "cut" and x.labels()[s[1]][0] not in TOKENS for s, (_, _, x) in zip(chosen, operands))


def _product(values: Iterator[int]) -> int:
    total = 1
    for v in values:
        total *= v
    return total


def _global_rows(of: Layout, axis: int, p: int) -> int:
    return int(of.shape[axis]) * p


def _clone(args: dict[str, Any]) -> dict[str, Any]:
    def copy(v: Any) -> Any:
        if isinstance(v, torch.Tensor):
            return v.clone()
        return [copy(x) for x in v] if isinstance(v, list) else v

    return {k: copy(v) for k, v in args.items()}


def _claims(
    book: RuleBook,
    sample: Sample,
    layouts: list[Layout],
    p: int,
    T: int,
    size: Callable[[str, str, bool], int],
    returns: int,
) -> tuple[list[Any], list[str], str]:
    """Result layouts, refusals and the claim as text; the same from every rank's point of view."""
    rule = book.lookup(sample.target)
    assert rule is not None, sample.target
    first: list[Any] | None = None
    refused: list[str] = []
    holes = {(name, i): Hole(k) for k, (name, i, _) in enumerate(sample.operands())}
    text = ""
    views = range(p) if any(isinstance(v, At) for v in sample.args.values()) else range(1)
    for r in views:
        args = _resolved(sample, dict(holes), Env(r, p, T), lambda of, label: size(of, label, True))
        args = {k: _tuples(v) for k, v in args.items()}
        params = rule.bind([], args)
        instance = OpInstance(sample.target, rule, params, len(layouts), returns)
        ctx = context(p, r)
        result = apply(ctx, instance, tuple(layouts))
        refused += [i.code for i in result.issues] + [
            f"want {w.kind}" for w in result.wants if w.issue is not None or w.kind == "cut"
        ]
        text = ", ".join(ctx.show(o) if isinstance(o, Layout) else str(o) for o in result.outs)
        if sample.written:
            slots = [h.slot for (name, _), h in holes.items() if name == sample.written]
            result.outs = tuple(result.mutated.get(s) for s in slots)
        if first is None:
            first = list(result.outs)
        elif first != list(result.outs) and not refused:
            refused.append("differs by rank")
    return first or [], refused, text


def verify_sample(
    book: RuleBook, sample: Sample, sizes: Sequence[int] = SIZES, seeds: int = 1
) -> list[Verdict]:
    """All combinations of operand states of one sample, each over sizes and token counts."""
    verdicts: dict[tuple[State, ...], Verdict] = {}
    holds: dict[tuple[State, ...], set[str] | None] = {}
    for p in sizes:
        counts = token_counts(p)
        if not any("t" in x.axes for _, _, x in sample.operands()):
            counts = counts[-1:]
        for T in counts:
            if sample.only is not None and not sample.only(p, T):
                continue
            for chosen in product(*[states(x, p) for _, _, x in sample.operands()]):
                if sample.shape_of and not _alike(sample, chosen):
                    continue
                verdict = verdicts.setdefault(chosen, Verdict(sample, chosen))
                for seed in range(seeds):
                    rng = random.Random(f"{sample.target} {chosen} {p} {T} {seed}").randrange(2**31)
                    found = trial(book, sample, chosen, p, T, rng)
                    if found is None:
                        verdict.empty += 1
                        continue
                    verdict.trials += 1
                    verdict.kinds.add("refused" if found.refused else found.kind)
                    verdict.refusals.update(found.refused)
                    if found.wrong is not None:
                        verdict.incorrect.append(f"p={p}, T={T}: {found.wrong}")
                    if p > 1:
                        now = found.holds if found.holds is not None else set()
                        before = holds.get(chosen)
                        holds[chosen] = now if before is None else before & now
                    if found.refused and found.holds:
                        verdict.missing.add("?")
    for chosen, verdict in verdicts.items():
        # what a refusal misses must have held in every trial, not by luck in one
        verdict.missing = (holds.get(chosen) or set()) if verdict.refusals else set()
    return list(verdicts.values())
