"""Layouts of inputs: weights, tokens, caches, metadata.

Token axes come from a declaration, from a dynamic dimension, or from being ids or positions; never from a size that happens to match.
An axis of an anonymous input of which nothing is known is a domain variable, unified with what it meets.
"""

from __future__ import annotations

from typing import Any

import attrs

from layoutcheck.domains import Domain, feature, token, variable
from layoutcheck.errors import InputError
from layoutcheck.graph import SymMeta, TensorMeta
from layoutcheck.infer.solver.one_call import transform_of
from layoutcheck.infer.solver.trace import Cut
from layoutcheck.layout_text import check_text, parse_layout
from layoutcheck.layouts import Axis, Layout, layout, replace
from layoutcheck.mesh import Mesh
from layoutcheck.program import CALL, OUTPUT, PLACEHOLDER, Program
from layoutcheck.symbols import Expr, Size, coefficient, free_symbols, symbol_name

_INTS = ("int64", "int32", "int16", "uint8", "bool")
_CACHE_RANK = 4
# Rows written at positions, where the result is the cache as it is then.
_WRITTEN = frozenset(("index_put", "index_add", "scatter"))
_PASSING = frozenset(
    (
        "same",
        "view",
        "permute",
        "transpose",
        "t",
        "unsqueeze",
        "squeeze",
        "flatten",
        "unflatten",
        "expand",
        "slice",
        "narrow",
        "select",
        "split",
        "chunk",
        "cat",
        "stack",
        "wait",
        "copy",
        "all_gather",
        "broadcast",
    )
)


@attrs.define
class InputPlan:
    """What is known of each input before inference."""

    roles: dict[int, str]
    metas: dict[int, TensorMeta]
    declared: dict[int, Layout]
    names: dict[str, Size]
    token_axes: dict[tuple[int, int], str] = attrs.field(factory=dict)
    sizes: dict[int, Size] = attrs.field(factory=dict)
    # names of symbolic extents that a declaration gave: whatever else has this extent has these tokens
    called: dict[Size, str] = attrs.field(factory=dict)
    # declared layouts of values that leave, as text
    leaving: dict[int, str] = attrs.field(factory=dict)
    # patterns of the plan that fit no weight, each with the weights' names that look like it
    unused: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def __repr__(self) -> str:
        return f"<InputPlan of {len(self.roles)} inputs, {len(self.declared)} declared>"


def _uses(p: Program) -> dict[int, list[tuple[int, int]]]:
    uses: dict[int, list[tuple[int, int]]] = {}
    for k, ins in enumerate(p.inputs):
        for slot, v in enumerate(ins):
            uses.setdefault(v, []).append((k, slot))
    return uses


def _params_of(p: Program, k: int, slot: int) -> str | None:
    from layoutcheck.infer.calls.call import slots_in

    instance = p.instances[p.op[k]]
    for name, value in instance.params.items():
        if slot in slots_in(value):
            return name
    return None


def classify_inputs(p: Program, uses: dict[int, list[tuple[int, int]]] | None = None) -> dict[int, str]:
    """A role per input: `weight`, `ids`, `table`, `cache`, `activation`, `metadata`."""
    uses = _uses(p) if uses is None else uses
    roles: dict[int, str] = {}
    for k, kind in enumerate(p.kind):
        if kind != PLACEHOLDER:
            continue
        node = p.nodes[k]
        value = p.first[k]
        meta = node.meta if isinstance(node.meta, TensorMeta) else None
        spec = p.graph.inputs.get(node.name)
        declared = spec.kind if spec is not None else "unknown"
        if node.op == "get_attr" and declared == "unknown":
            declared = "constant"
        found = _role_by_use(p, uses, value, meta)
        if declared in ("parameter", "buffer", "constant"):
            roles[value] = "weight" if found not in ("cache",) else found
        elif declared == "user_input":
            roles[value] = (
                found
                if found in ("ids", "cache")
                else ("metadata" if meta is not None and meta.dtype in _INTS else "activation")
            )
        else:
            roles[value] = found
    return roles


def _role_by_use(
    p: Program, uses: dict[int, list[tuple[int, int]]], value: int, meta: TensorMeta | None
) -> str:
    """What an input is, by the parameters that it reaches through views and casts."""
    seen = {value}
    todo = [value]
    votes: dict[str, int] = {}
    is_int = meta is not None and meta.dtype in _INTS
    steps = 0
    while todo and steps < 400:
        v = todo.pop()
        for k, slot in uses.get(v, ()):
            steps += 1
            if p.kind[k] != CALL:
                continue
            instance = p.instances[p.op[k]]
            rule = instance.rule
            if rule is None:
                continue
            name = _params_of(p, k, slot)
            if name in rule.mutates or name in rule.whole:
                votes["cache"] = votes.get("cache", 0) + 1
            elif rule.code == "embedding" and name == rule.options.get("indices", "indices"):
                votes["ids"] = votes.get("ids", 0) + 1
            elif (rule.code == "cache_write" and name == rule.options.get("cache", "cache")) or (
                _is_cache(meta) and _keeps(p, k, rule, name)
            ):
                votes["cache"] = votes.get("cache", 0) + 1
            elif name in rule.weights or (
                rule.code in ("index", "index_select")
                and name == rule.options.get("self", "self")
                and not is_int
            ):
                votes["weight"] = votes.get("weight", 0) + 1
            elif (rule.kind == "code" and rule.code in _PASSING) or (
                rule.kind == "elementwise" and (is_int or _is_cast(rule))
            ):
                for j in range(p.outs[k]):
                    out = p.first[k] + j
                    if out not in seen:
                        seen.add(out)
                        todo.append(out)
            elif rule.kind == "code" and rule.code in ("where", "index_put", "masked_fill") and is_int:
                out = p.first[k]
                if out not in seen:
                    seen.add(out)
                    todo.append(out)
            else:
                votes["other"] = votes.get("other", 0) + 1
    if is_int:
        return "ids" if "ids" in votes else "metadata"
    if "cache" in votes:
        return "cache"
    if "weight" in votes and votes["weight"] >= votes.get("other", 0):
        return "weight"
    if meta is not None and len(meta.shape) <= 1:
        return "weight"
    if "weight" in votes:
        return "weight"
    if meta is not None and meta.dtype in ("int8", "uint8") and not votes.get("other"):
        return "weight"
    return "activation"


def _is_cache(meta: TensorMeta | None) -> bool:
    """Whether an input may be a cache of keys or values: floats, with a batch, heads, positions and what a head holds."""
    return meta is not None and len(meta.shape) == _CACHE_RANK and meta.dtype not in _INTS


def _keeps(p: Program, k: int, rule: Any, name: str | None) -> bool:
    """Whether a call puts rows that the program computes into an input, or behind it."""
    if rule.code in _WRITTEN:
        return bool(name == rule.options.get("self", "self"))
    return rule.code == "cat" and {p.kind[p.value_call[v]] for v in p.inputs[k]} == {PLACEHOLDER, CALL}


def _is_cast(rule: Any) -> bool:
    return bool(rule.linear) and len(rule.linear) == 1 and bool(rule.outdtypes)


def plan_inputs(
    p: Program,
    mesh: Mesh,
    tokens: list[tuple[str, int]],
    layouts: dict[str, str],
    uses: dict[int, list[tuple[int, int]]],
    weights: dict[str, Any] | None = None,
) -> InputPlan:
    """Gather declarations and roles.

    Raises:
        InputError: a declaration names no input, an axis out of range, or does not fit.
    """
    roles = classify_inputs(p, uses)
    by_name: dict[str, int] = {}
    metas: dict[int, TensorMeta] = {}
    sizes: dict[int, Size] = {}
    for k, kind in enumerate(p.kind):
        if kind != PLACEHOLDER:
            continue
        node = p.nodes[k]
        value = p.first[k]
        by_name[node.name] = value
        spec = p.graph.inputs.get(node.name)
        if spec is not None and spec.fqn:
            by_name.setdefault(spec.fqn, value)
        meta = node.meta
        if isinstance(meta, SymMeta):
            sizes[value] = meta.value
        metas[value] = meta if isinstance(meta, TensorMeta) else TensorMeta((), "float32")
    plan = InputPlan(roles, metas, {}, {}, sizes=sizes)
    for name, axis in tokens:
        value = _named(by_name, name, "--tokens")
        rank = len(metas[value].shape)
        if not -rank <= axis < rank:
            raise InputError(f"{name} has {rank} axes, there is no axis {axis}", "--tokens")
        plan.token_axes[(value, axis % rank)] = "T" if len({n for n, _ in tokens}) >= 1 else name
    for k, kind in enumerate(p.kind):
        if kind == PLACEHOLDER:
            text = getattr(p.nodes[k].meta, "layout", None)
            if text is not None:
                value = p.first[k]
                plan.declared[value] = parse_layout(
                    text, mesh, metas[value].dtype, metas[value].shape, p.nodes[k].name, plan.names
                )
    if weights is not None:
        _apply_plan(p, mesh, plan, weights)
    ends = [k for k, kind in enumerate(p.kind) if kind == OUTPUT] if layouts else []
    leaves = {p.name_of(v): v for k in ends for v in p.inputs[k]}
    for name, text in layouts.items():
        if name in leaves and name not in by_name:
            check_text(text, mesh, f"--layout {name}")
            plan.leaving[leaves[name]] = text
            continue
        value = _named({**leaves, **by_name}, name, "--layout")
        plan.declared[value] = parse_layout(
            text, mesh, metas[value].dtype, metas[value].shape, f"--layout {name}", plan.names
        )
    for (value, axis), name in plan.token_axes.items():
        plan.called.setdefault(metas[value].shape[axis], name)
    for name, size in plan.names.items():
        plan.called.setdefault(size, name)
    return plan


def _apply_plan(p: Program, mesh: Mesh, plan: InputPlan, weights: dict[str, Any]) -> None:
    from layoutcheck.infer.solver.weight_plan import planned_layout, unused_patterns

    names: list[str] = []
    for value, role in plan.roles.items():
        if role != "weight":
            continue
        name = p.nodes[p.value_call[value]].name
        spec = p.graph.inputs.get(name)
        full = spec.fqn if spec is not None and spec.fqn else name
        names.append(full)
        found = planned_layout(weights, full, plan.metas[value], mesh, plan.names)
        if found is not None:
            plan.declared[value] = found
    plan.unused = unused_patterns(weights, names)


def _named(by_name: dict[str, int], name: str, where: str) -> int:
    if name not in by_name:
        import difflib

        near = difflib.get_close_matches(name, by_name, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        what = "input or output" if where == "--layout" else "input"
        raise InputError(f"there is no {what} `{name}`{hint}", where)
    return by_name[name]


Substitution = dict[Domain, Any]


def build_inputs(
    p: Program, mesh: Mesh, plan: InputPlan, cuts: dict[int, list[Cut]], same: Substitution
) -> dict[int, Any]:
    """A layout for every input, with cuts and unified domains applied."""
    out: dict[int, Any] = {}
    for k, kind in enumerate(p.kind):
        if kind != PLACEHOLDER:
            continue
        value = p.first[k]
        if value in plan.sizes:
            out[value] = plan.sizes[value]
            continue
        declared = plan.declared.get(value)
        if declared is not None:
            out[value] = declared
            continue
        meta = plan.metas[value]
        role = plan.roles[value]
        if role in ("weight", "cache"):
            base = layout(meta.dtype, tuple((feature(n).whole,) for n in meta.shape))
            out[value] = _with_cuts(base, cuts.get(value, []), mesh)
            continue
        axes: list[Axis] = []
        for i, n in enumerate(meta.shape):
            axes.append(_input_axis(p, plan, value, k, i, n, role, len(meta.shape), same))
        base = layout(meta.dtype, tuple(axes))
        base = _with_cuts(base, cuts.get(value, []), mesh)
        if mesh.quotient and base.rank:
            bound = dict(base.bound_map)
            for m in mesh.quotient:
                bound.setdefault(m, (token("data", mesh.size(m)).whole,))
            base = replace(base, bound=bound)
        out[value] = base
    return out


def _input_axis(
    p: Program,
    plan: InputPlan,
    value: int,
    k: int,
    axis: int,
    n: Size,
    role: str,
    rank: int,
    same: Substitution,
) -> Axis:
    if (value, axis) in plan.token_axes:
        return (token(plan.token_axes[(value, axis)], n).whole,)
    if isinstance(n, Expr):
        if n in plan.called:
            return (token(plan.called[n], n).whole,)
        name = _token_name(n)
        if name is not None:
            return (token(name, n).whole,)
    if role == "ids":
        # ids are [.., tokens]: the last axis is the tokens', others batch; extents of one are tokens only if nothing else is
        if n == 1 and axis != rank - 1:
            return ()
        return (token("T" if axis == rank - 1 else f"B{axis}" if rank > 2 else "B", n).whole,)
    if n == 1:
        return ()
    domain = variable(p.nodes[k].name, axis, n)
    seen = set()
    found: Any = domain
    while isinstance(found, Domain) and found in same and found not in seen:
        seen.add(found)
        found = same[found]
    if isinstance(found, Domain):
        return (found.whole,)
    axes: Axis = found
    return axes


def _token_name(n: Expr) -> str | None:
    """The name of a symbolic token count: a symbol, or a multiple of one; None of any other size.

    Under an assumption of divisibility T is 4 times the symbol ``T_div4``, and still called T.
    """
    name = symbol_name(n)
    if name is not None or len(n.terms) > 1:
        return name
    for symbol in sorted(free_symbols(n)):
        times = coefficient(n, symbol)
        whole, _, by = symbol.rpartition("_div")
        if whole and str(times) == by:
            return whole
        if isinstance(times, int) and times != 0:
            return symbol
    return None


def _with_cuts(base: Layout, cuts: list[Cut], mesh: Mesh) -> Layout:
    """An input with digits of some axes bound to groups."""
    if not cuts:
        return base
    from layoutcheck.domains import Factor, factor
    from layoutcheck.symbols import divide_exact

    by_axis: dict[int, list[Cut]] = {}
    for c in cuts:
        if not any(c.inner == d.inner and c.mesh_axes == d.mesh_axes for d in by_axis.setdefault(c.axis, [])):
            by_axis[c.axis].append(c)
    axes = list(base.axes)
    bound: dict[int, tuple[Factor, ...]] = dict(base.bound_map)
    for axis, found in by_axis.items():
        local = base.shape[axis]
        token_axis = bool(base.axes[axis]) and not all(f.domain.is_feature for f in base.axes[axis])
        inner = found[0].inner
        members = sorted({m for c in found if c.inner == inner for m in c.mesh_axes}, reverse=True)
        ways: Size = 1
        for m in members:
            ways = ways * mesh.size(m)
        major = divide_exact(local, inner)
        if major is None:
            major, inner = 1, local
        total = inner * ways
        domain = token(f"{base.axes[axis][0].domain.name}", total) if token_axis else feature(total)
        stride: Size = total
        for m in members:
            exact = divide_exact(stride, mesh.size(m))
            stride = exact if exact is not None else inner
            bound[m] = (*bound.get(m, ()), factor(domain, stride, mesh.size(m)))
        digits: list[Any] = [factor(domain, 1, inner)]
        if major != 1:
            digits.insert(0, feature(major).whole)
        axes[axis] = tuple(digits)
    return layout(base.dtype, tuple(axes), bound)


def code_of(p: Program, k: int) -> str | None:
    """The transform name of a call's rule."""
    transform = transform_of(p.instances[p.op[k]])
    return transform.name if transform is not None else None
