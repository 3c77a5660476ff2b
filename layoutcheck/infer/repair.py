"""Candidate repairs: an operand converted first, or a collective left out. Each comes with what it costs on the wire."""

from __future__ import annotations

import attrs

from layoutcheck.domains import is_token_like, padded
from layoutcheck.findings import Fix
from layoutcheck.infer.analysis import Analysis
from layoutcheck.infer.call import Issue, Result
from layoutcheck.infer.run import Key, apply
from layoutcheck.layouts import Layout, bound_on_axis, replace
from layoutcheck.mesh import Group
from layoutcheck.symbols import Size, cdiv, divide_exact
from layoutcheck.transforms.collectives import gather_onto, pending_over
from layoutcheck.transforms.pieces import axis_digit, take_share

_BYTES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "bfloat16": 2, "float16": 2, "int16": 2}


@attrs.frozen(eq=False)
class Candidate:
    """A repair: its words, the bytes that a rank sends more (less is negative), and the answers that it changes."""

    text: str
    bytes: str
    patches: dict[Key, Result]

    def fix(self, verified: bool) -> Fix:
        """The repair as part of a finding."""
        return Fix(self.text, self.bytes, 1, verified)


@attrs.frozen(eq=False)
class Conversion:
    """One operand's other layout, how to get it and its price."""

    layout: Layout
    text: str
    bytes: str


def nbytes(of: Layout) -> Size:
    """Bytes that a rank holds of a tensor."""
    total: Size = _BYTES.get(of.dtype, 1)
    for n in of.shape:
        total = total * n
    return total


def _wire(count: int, ways: Size, size: Size) -> str:
    """`count*(ways - 1)/ways*size` as a number or an expression, divided out where that comes out even."""
    total = divide_exact(count * (ways - 1) * size, ways)
    return f"{count}*({ways} - 1)/{ways}*({size})" if total is None else str(total)


def _all_groups(analysis: Analysis) -> list[Group]:
    mesh = analysis.mesh
    seen: dict[tuple[int, ...], Group] = {}
    for group in [*mesh.groups.values(), *mesh.by_ranks.values()]:
        if group.axes and not set(group.axes) & mesh.quotient:
            seen.setdefault(group.axes, group)
    return list(seen.values())


def conversions(analysis: Analysis, of: Layout) -> list[Conversion]:
    """All single conversions of a layout: gather, slice, reduce, scatter, pad, unpad."""
    out: list[Conversion] = []
    mesh = analysis.mesh
    for group in _all_groups(analysis):
        ways = group.size
        if all(len(of.bound_map.get(m, ())) == 1 and m not in of.partial for m in group.axes):
            for dim in range(of.rank):
                cuts = {m for m, _ in bound_on_axis(of, dim)}
                if set(group.axes) <= cuts:
                    wide, problem = gather_onto(of, dim, group)
                    if not problem:
                        out.append(
                            Conversion(wide, f"all_gather over {group.name}", str(nbytes(of) * (ways - 1)))
                        )
                        tail = _unpadded(wide, dim)
                        if tail is not None:
                            out.append(
                                Conversion(
                                    tail,
                                    f"all_gather over {group.name}, then cut the padding off",
                                    str(nbytes(of) * (ways - 1)),
                                )
                            )
        if all(m not in of.bound_map and m not in of.partial for m in group.axes):
            share = _share(analysis, of, group)
            if share is not None:
                out.append(Conversion(share, f"slice at rank({group.name})", "0"))
        pending = pending_over(of, group)
        if pending and len(pending) == len(group.axes):
            bare = replace(
                of,
                partial=tuple(m for m in of.partial if m not in group.axes),
                bound={m: fs for m, fs in of.bound if m not in pending or m in of.partial},
            )
            if not any(bare.is_mixed(m) for m in group.axes):
                out.append(Conversion(bare, f"all_reduce over {group.name}", _wire(2, ways, nbytes(of))))
                if not any(m in bare.bound_map for m in group.axes):
                    share = _share(analysis, bare, group)
                    if share is not None:
                        out.append(
                            Conversion(
                                share,
                                f"reduce_scatter over {group.name}",
                                _wire(1, ways, nbytes(of)),
                            )
                        )
    for dim in range(of.rank):
        tail = _unpadded(of, dim)
        if tail is not None:
            out.append(Conversion(tail, "cut the padding off", "0"))
    del mesh
    return out


def _unpadded(of: Layout, dim: int) -> Layout | None:
    axis = of.axes[dim]
    if len(axis) == 1 and axis[0].is_whole and axis[0].domain.kind == "pad":
        return replace(of, axes=(*of.axes[:dim], (axis[0].domain.args[0].whole,), *of.axes[dim + 1 :]))
    return None


def _share(analysis: Analysis, of: Layout, group: Group) -> Layout | None:
    """This rank's share of the first token axis, padded where it does not divide."""
    sizes = [analysis.mesh.size(m) for m in group.axes]
    for dim, axis in enumerate(of.axes):
        if (
            not axis
            or not any(is_token_like(f.domain) for f in axis)
            or any(f.domain.kind in ("range", "pick") for f in axis)
        ):
            continue
        digit = axis_digit(axis)
        if digit is None or (not digit.is_whole and divide_exact(digit.extent, group.size) is None):
            return None
        each = divide_exact(digit.extent, group.size)
        if each is None:
            each = cdiv(digit.extent, group.size)
            digit = padded(digit.domain, each * group.size).whole
        cut = take_share(digit, group, each, sizes)
        if cut is None:
            return None
        bound = dict(of.bound_map)
        for m, b in cut[1].items():
            bound[m] = (*bound.get(m, ()), b)
        return replace(of, axes=(*of.axes[:dim], (cut[0],), *of.axes[dim + 1 :]), bound=bound)
    return None


def candidates(
    analysis: Analysis, patched: dict[Key, Result], k: int, key: Key, issue: Issue
) -> list[Candidate]:
    """Repairs of one issue whose call is right on the repaired operand, cheapest kind first."""
    p = analysis.program
    out: list[Candidate] = []
    if p.op[k] < 0:
        return _at_output(analysis, key, issue)
    instance = p.instances[p.op[k]]
    if instance.rule is None:
        return []
    ins = key[1:]
    ctx = analysis.solution.runner.ctx
    known = patched.get(key) or analysis.solver.memo.get(key)
    n = p.outs[k]
    if "mixed" in issue.hints and known is not None:
        out.extend(_unmix(analysis, k, key, known))
    if "drop" in issue.hints:
        slot = issue.operands[0] if issue.operands else 0
        if isinstance(ins[slot], Layout):
            outs = tuple([ins[slot]] * n)
            mutated = {slot: ins[slot]} if instance.rule.mutates else {}
            out.append(Candidate("leave this collective out", "0", {key: Result(outs, (), (), mutated)}))
    slots = list(issue.operands) or [i for i, x in enumerate(ins) if isinstance(x, Layout)]
    for slot in dict.fromkeys(slots):
        of = ins[slot] if slot < len(ins) else None
        if not isinstance(of, Layout):
            continue
        name = p.name_of(p.inputs[k][slot])
        for conversion in conversions(analysis, of):
            changed = (*ins[:slot], conversion.layout, *ins[slot + 1 :])
            result = apply(ctx, instance, changed)
            if result.issues or any(w.issue is not None for w in result.wants):
                continue
            out.append(
                Candidate(
                    f"{conversion.text} of {name} first",
                    conversion.bytes,
                    {key: Result(result.outs, (), (), result.mutated)},
                )
            )
    return out


def _at_output(analysis: Analysis, key: Key, issue: Issue) -> list[Candidate]:
    """The output has no rule; a repair there changes nothing further down."""
    slot = issue.operands[0] if issue.operands else 0
    of = key[1 + slot] if 1 + slot < len(key) else None
    out = []
    if isinstance(of, Layout):
        for conversion in conversions(analysis, of):
            if issue.code == "LC107" or not conversion.layout.partial:
                out.append(Candidate(f"{conversion.text} before it leaves", conversion.bytes, {}))
    return out


def _unmix(analysis: Analysis, k: int, key: Key, known: Result) -> list[Candidate]:
    """The two repairs of a sum that mixes tokens: whole weights, or whole tokens while the weights are sharded."""
    p = analysis.program
    of = next((x for x in key[1:] if isinstance(x, Layout)), None)
    if of is None:
        return []
    mixed = [m for m in analysis.mesh.names() if of.is_mixed(m)]
    ways = analysis.solution.runner.ctx.ways(tuple(mixed))
    size = nbytes(of)
    result = Result(known.outs, (), (), known.mutated)
    del p, k
    group = analysis.mesh.group_name(mixed)
    return [
        Candidate(
            f"replicate the weights over {group} and leave this collective out",
            _wire(-2, ways, size),
            {key: result},
        ),
        Candidate(
            f"all_gather the tokens over {group} before the first of these weights, reduce_scatter here",
            _wire(2, ways, size * (ways - 1)),
            {key: result},
        ),
    ]
