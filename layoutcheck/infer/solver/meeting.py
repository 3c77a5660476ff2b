"""Whether ranks meet, and take the same pieces: the collectives that they run over one group are the same, in the same
order, on the same shapes.

Compared by order, not by name, since ranks' exports need not be alike. A rank that runs other collectives waits for ever.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Any, NamedTuple

from layoutcheck.arguments import Hole
from layoutcheck.infer.calls.call import CONSTANT, ONLY, PIECE, PREFERRED, STACKED, Issue
from layoutcheck.infer.solver.collectives import collectives_of
from layoutcheck.infer.solver.one_call import transform_of
from layoutcheck.infer.solver.run import Key
from layoutcheck.infer.solver.solve import Solver
from layoutcheck.infer.solver.together import slice_calls
from layoutcheck.infer.solver.which_group import fresh
from layoutcheck.layouts import Layout
from layoutcheck.program import CALL, OUTPUT, PLACEHOLDER, Program
from layoutcheck.rules.kinds import COMMUNICATING

Entry = tuple[int, Key, Issue]


class Rank(NamedTuple):
    """One rank's solved program."""

    program: Program
    types: list[Any]
    rank: int | None
    solver: Solver


class _Meeting(NamedTuple):
    call: int
    op: str
    ranks: Any
    shape: tuple[Any, ...]


def differences(mine: Rank, others: list[Rank]) -> list[Entry]:
    """Where another rank's program departs from mine: the first collective that does not meet, and inputs of other sizes."""
    out: list[Entry] = []
    pieces: list[Entry] = []
    for other in others:
        if other.rank == mine.rank and other.rank is not None:
            continue
        name = "another rank" if other.rank is None else f"rank {other.rank}"
        out += _inputs(mine, other, name)
        out += _shares(mine, other, name)
        pieces = pieces or _pieces(mine, other, name)
        found = _first_difference(mine, other, name)
        if found is not None:
            out.append(found)
    return out + pieces


def _inputs(mine: Rank, other: Rank, name: str) -> list[Entry]:
    """Inputs that are whole on both ranks, and not of one size."""
    out: list[Entry] = []
    p = mine.program
    for k, kind in enumerate(p.kind):
        if kind != PLACEHOLDER:
            continue
        there = other.program.by_name.get(p.nodes[k].name)
        a = mine.types[p.first[k]]
        b = other.types[there] if there is not None else None
        if not isinstance(a, Layout) or not isinstance(b, Layout) or a.bound or b.bound:
            continue
        if all(isinstance(n, int) for n in (*a.shape, *b.shape)) and a.shape != b.shape:
            text = f"is {list(a.shape)} here and {list(b.shape)} on {name}"
            out.append((k, (p.op[k], a), Issue("LC903", text)))
            break
    return out


def _shares(mine: Rank, other: Rank, name: str) -> list[Entry]:
    """Slices that are my rank's share, and on the other rank rows of somebody else."""
    out: list[Entry] = []
    theirs = slice_calls(other.program, other.types)
    for node, (k, _) in slice_calls(mine.program, mine.types).items():
        if node not in theirs:
            continue
        a = mine.types[mine.program.first[k]]
        b = other.types[other.program.first[theirs[node][0]]]
        if (
            not isinstance(a, Layout)
            or not isinstance(b, Layout)
            or not a.bound
            or b.bound
            or a.rank != b.rank
        ):
            continue
        if any(f.domain.kind == "range" for axis in b.axes for f in axis):
            text = f"this rank takes its own share here, {name} takes {other.solver.ctx.show(b)}, which is not its share"
            out.append(_entry(mine, k, "LC102", text))
    return out


_SELECTING = frozenset(("slice", "narrow", "select", "split", "chunk", "tensor_split", "unbind"))
_MARKS = frozenset((CONSTANT, PIECE, PREFERRED, STACKED))


def _pieces(mine: Rank, other: Rank, name: str) -> list[Entry]:
    """Pieces of features, or single elements, that are not the same on the other rank, and no rank's share either.

    Types do not say which features a piece has, so that the two look alike.
    """
    out: list[Entry] = []
    for k, kind in enumerate(mine.program.kind):
        own = _selected(mine, k) if kind == CALL else None
        at = other.program.node_call.get(mine.program.nodes[k].name) if own is not None else None
        theirs = _selected(other, at) if at is not None else None
        if own is None or theirs is None or own == theirs or at is None:
            continue
        a, b = _first_type(mine, k), _first_type(other, at)
        shares = fresh(mine.types, mine.program, k) or fresh(other.types, other.program, at)
        if a is None or a != b or shares:
            continue
        text = f"takes {_written(own)} here and {_written(theirs)} on {name}, and neither is a rank's share"
        out.append(_entry(mine, k, "LC102", text))
        break  # what follows from it is of its kind
    return out


def _first_type(one: Rank, k: int) -> Any:
    p = one.program
    return one.types[p.first[k] + p.instances[p.op[k]].params.get(ONLY, 0)]


def _selected(one: Rank, k: int) -> dict[str, Any] | None:
    """Which part of its operand a call takes, by argument; None where it takes none, or one of tokens that stay an axis."""
    p = one.program
    instance = p.instances[p.op[k]]
    transform = transform_of(instance)
    if (
        transform is None
        or transform.name not in _SELECTING
        or (p.outs[k] > 1 and ONLY not in instance.params)
    ):
        return None
    given = one.types[p.inputs[k][0]] if p.inputs[k] else None
    if not isinstance(given, Layout) or not given.rank or instance.rule is None:
        return None
    named = {
        key: one.types[p.inputs[k][value.slot]] if isinstance(value, Hole) else value
        for key, value in instance.params.items()
        if key not in _MARKS
    }
    data = instance.rule.options.get("self", "self")
    named.pop(data, None)
    dim = named.get(instance.rule.options.get("dim", "dim"), 0)
    axis = given.axes[dim] if isinstance(dim, int) and -given.rank <= dim < given.rank else ()
    tokens = any(not f.domain.is_feature for f in axis)
    return None if tokens and transform.name not in ("select", "unbind") else named


def _written(bounds: dict[str, Any]) -> str:
    return ", ".join(f"{'piece' if key == ONLY else key}={value}" for key, value in bounds.items())


def _meetings(one: Rank) -> list[_Meeting]:
    found = []
    for k, code, slots, group in collectives_of(one.program, one.types, one.solver.ctx, COMMUNICATING):
        data = next((of for of in slots if isinstance(of, Layout)), None)
        static = data is not None and all(isinstance(n, int) for n in data.shape)
        found.append(_Meeting(k, code, group.size, tuple(data.shape) if data is not None and static else ()))
    return found


def _first_difference(mine: Rank, other: Rank, name: str) -> Entry | None:
    p = mine.program
    for a, b in zip_longest(_meetings(mine), _meetings(other)):
        if a is None:
            end = next(k for k in range(len(p.kind) - 1, -1, -1) if p.kind[k] == OUTPUT or k == 0)
            there = other.program.nodes[b.call].name
            return _entry(
                mine,
                end,
                "LC301",
                f"{name} goes on with {b.op} ({there}), which no call here meets: it waits",
            )
        if b is None:
            return _entry(mine, a.call, "LC301", f"{name} has no {a.op} here: this rank waits for it")
        where = f"{name} ({other.program.nodes[b.call].name})"
        if a.op != b.op:
            return _entry(
                mine, a.call, "LC301", f"{where} runs {b.op} where this rank runs {a.op}: they never meet"
            )
        if a.ranks != b.ranks:
            text = f"runs over {a.ranks} ranks here and over {b.ranks} on {where}: they never meet"
            return _entry(mine, a.call, "LC301", text)
        if a.op != "all_to_all" and a.shape and b.shape and a.shape != b.shape:
            text = f"gives {list(a.shape)} to it here, {list(b.shape)} on {where}"
            return _entry(mine, a.call, "LC903", text)
    return None


def _entry(mine: Rank, k: int, code: str, text: str) -> Entry:
    p = mine.program
    key: Key = (p.op[k], *[mine.types[v] for v in p.inputs[k]])
    return k, key, Issue(code, text)
