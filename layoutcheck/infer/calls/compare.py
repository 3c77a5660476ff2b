"""Do two axes hold the same tokens in the same way? The heart of every join."""

from __future__ import annotations

from typing import Any

from layoutcheck.domains import Domain, Factor, base_of, describe, feature, is_token_like
from layoutcheck.infer.calls.call import Call, Issue
from layoutcheck.layouts import Axis, Layout, bound_on_axis, extent_of
from layoutcheck.symbols import Size, divide_exact

# Domains that say less of a place's tokens than the tokens that they were made of.
_MOVED = frozenset(("range", "concat", "opaque"))

# The strength of an axis with the one token of a batch of one token.
ONE_TOKEN = 1


def is_wild(axis: Axis) -> bool:
    """Whether every factor of the axis is a constant fill's, which fits anything of its extent."""
    return bool(axis) and all(f.domain.kind == "any" for f in axis)


def counts_any(axis: Axis) -> bool:
    """Whether an axis is a fill's or counts from 0: it may be made as a share as well."""
    return bool(axis) and all(f.domain.kind in ("any", "iota") for f in axis)


def is_one_token(axis: Axis) -> bool:
    """Whether the axis holds the one token of a batch of one token, all of it.

    Views can't tell it from any other axis of one, so it fits features, too.
    """
    return bool(axis) and all(_is_one(f) for f in axis)


def _is_one(f: Factor) -> bool:
    return f.extent == 1 and f.is_whole and not f.domain.is_feature


def is_misplaced(of: Layout, at: int, beside: Layout, there: int) -> bool:
    """Whether the one token on an axis is elsewhere on the operand beside it, which has nothing or features on this axis."""
    axis, other = of.axes[at], beside.axes[there]
    return (
        is_one_token(axis)
        and is_feature(other)
        and any(axis[0] in a for i, a in enumerate(beside.axes) if i != there)
    )


def is_feature(axis: Axis) -> bool:
    """Whether the axis is made of features only."""
    return all(f.domain.is_feature for f in axis)


def cut_signature(of: Layout, axis: int) -> tuple[tuple[Size, int], ...]:
    """Where groups cut a feature axis: per sharded digit its place from the right and its mesh axes."""
    found = []
    inner: Size = 1
    bound = of.bound
    for f in reversed(of.axes[axis]):
        inner = inner * f.extent
        if f.is_whole:
            continue
        for m, fs in bound:
            if any(b.domain is f.domain for b in fs):
                found.append((inner, m))
    return tuple(found)


def cut_digits(of: Layout, axis: int) -> set[tuple[int, Factor]]:
    """Which digit of the axis each mesh axis selects."""
    return set(bound_on_axis(of, axis)) if of.bound else set()


def strength(axis: Axis) -> int:
    """How much an axis says of its domain: tokens more than features, features more than variables and fills."""
    if not axis:
        return -1
    if is_one_token(axis):
        return ONE_TOKEN
    best = 0
    for f in axis:
        kind = f.domain.kind
        if kind == "any" or _is_one(f):
            # the one token beside copies of heads says nothing of the heads
            continue
        if kind == "iota":
            best = max(best, 1)
        elif kind == "variable":
            best = max(best, 2)
        elif kind == "feature":
            best = max(best, 3)
        elif kind in _MOVED:
            best = max(best, 4)
        else:
            best = max(best, 5)
    return best


def _single(axis: Axis) -> Factor | None:
    return axis[0] if len(axis) == 1 else None


def compare_axes(
    call: Call,
    left: tuple[int, Layout, int],
    right: tuple[int, Layout, int],
    contraction: bool = False,
) -> Issue | None:
    """Compare axis by axis; returns the issue if they differ, and records wants that would make them equal.

    `left` and `right` are (slot, layout, axis). The stronger one (see `strength`) should be on the left.
    """
    (ls, ll, la), (rs, rl, ra) = left, right
    a, b = ll.axes[la], rl.axes[ra]
    if a is b and not ll.bound and not rl.bound:
        return None
    if is_wild(a) or is_wild(b):
        if extent_of(a) == extent_of(b) and not _from_another_place(call, left, right):
            return None
        return _differ(call, left, right, contraction)
    if any(_is_one(f) for f in (*a, *b)):
        a, b = (tuple(f for f in axis if not _is_one(f)) for axis in (a, b))
        if is_feature(a + b) and not (a and b):
            return None
        if (is_wild(a) or is_wild(b)) and extent_of(a) == extent_of(b):
            return None
    if is_feature(a) and is_feature(b):
        return _compare_features(call, left, right, contraction)
    if a == b:
        if cut_digits(ll, la) != cut_digits(rl, ra):
            return _differ(call, left, right, contraction)
        return None
    if _are_neighbours(a, b) and not _shares_tokens(ll) and not _shares_tokens(rl):
        return None
    one, other = _single(a), _single(b)
    if one is not None and other is not None and one.stride == other.stride and one.extent == other.extent:
        pair = _unifiable(one.domain, other.domain)
        if pair is not None:
            call.want("same", rs, None, data=pair)
            return None
    for x, y, y_axis, y_slot in ((one, other, b, rs), (other, one, a, ls)):
        if x is None or not x.is_whole:
            continue
        kind = x.domain.kind
        if (
            kind == "variable"
            and y is not None
            and y.is_whole
            and y.domain.kind == "pad"
            and y.domain.args[0].extent == x.extent
        ):
            # As long as the tokens before their padding: the same tokens, and one of the two is padded.
            call.want("same", y_slot, None, data=(x.domain, y.domain.args[0]))
            return None
        if kind == "variable" and extent_of(y_axis) == x.extent:
            if y is not None and y.is_whole:
                call.want("same", y_slot, None, data=(x.domain, y.domain))
                return None
            if y is None or y.is_whole:
                call.want("same", y_slot, None, data=(x.domain, y_axis))
                return None
            # a digit: the input is a rank's own share, or it is wrong
            return _differ(call, left, right, contraction)
        if kind == "iota" and extent_of(y_axis) == x.extent and (y is None or y.is_whole):
            return None
        if kind == "iota" and extent_of(y_axis) == x.extent and _is_of_rank_0(call, left, right):
            # rank 0's own positions in a shard count from 0
            return None
    for x_axis, y_axis, y_slot in ((a, b, rs), (b, a, ls)):
        free = [f for f in x_axis if f.domain.kind == "variable" and f.is_whole]
        flat = all(f in free or f.domain.is_feature for f in x_axis)
        if free and flat and is_feature(y_axis) and extent_of(x_axis) == extent_of(y_axis):
            # what a head of an anonymous cache holds, flattened with the heads, are features
            for f in free:
                call.want("same", y_slot, None, data=(f.domain, feature(f.extent)))
            return None
    return _differ(call, left, right, contraction)


def _is_of_rank_0(call: Call, left: tuple[int, Layout, int], right: tuple[int, Layout, int]) -> bool:
    """Whether the shares that two operands hold of an axis are those of the first rank, as far as is known."""
    cuts = [m for _, of, axis in (left, right) for m, _ in bound_on_axis(of, axis)]
    mesh = call.ctx.mesh
    return all(mesh.coordinate(m) in (0, None) for m in cuts) if cuts else not mesh.rank


def _from_another_place(call: Call, left: tuple[int, Layout, int], right: tuple[int, Layout, int]) -> bool:
    """Whether one of two axes is cut from a fill (a mask, slopes) where another rank's share of the other one is."""
    for (_, fill, at), (_, of, axis) in ((left, right), (right, left)):
        place = fill.axes[at][0].domain.args if len(fill.axes[at]) == 1 and is_wild(fill.axes[at]) else ()
        cuts = bound_on_axis(of, axis)
        if len(place) != 2 or len(cuts) != 1:
            continue
        ((m, b),) = cuts
        (start, total), length = place, extent_of(fill.axes[at])
        number, mine = divide_exact(start, length), call.ctx.mesh.coordinate(m)
        if total == length * b.extent and mine is not None and isinstance(number, int) and number != mine:
            return True
    return False


def _are_neighbours(a: Axis, b: Axis) -> bool:
    """Whether two axes hold the same tokens moved by a few: a token beside the one before it, logits beside the next label.

    Of values that are whole on every rank that is what the program says, not a layout. Pieces of at most half of the
    tokens, which may have been meant as shares, are none.
    """
    if len(a) != len(b):
        return False
    apart = [(f, g) for f, g in zip(a, b, strict=True) if f is not g]
    if len(apart) != 1:
        return False
    one, other = apart[0]
    if one.extent != other.extent or not (one.is_whole and other.is_whole):
        return False
    base = _moved_from(one.domain)
    if base is None or base is not _moved_from(other.domain) or not is_token_like(base):
        return False
    lacking = base.extent - one.extent
    if not isinstance(base.extent, int) or not isinstance(one.extent, int):
        return isinstance(lacking, int)
    return 2 * one.extent > base.extent + 1


def _shares_tokens(of: Layout) -> bool:
    """Whether a rank holds only its share of some tokens."""
    return any(is_token_like(b.domain) for _, fs in of.bound for b in fs)


def _moved_from(domain: Domain) -> Domain | None:
    """The tokens of which a domain is a stretch, with fills before or behind; itself for any other; None where several are joined."""
    parts: tuple[Any, ...]
    if domain.kind == "concat":
        parts = tuple(f for part in domain.args for f in part)
    elif domain.kind == "range" or (domain.kind == "opaque" and domain.name == "padded"):
        parts = (domain.args[0],)
    else:
        return domain
    found = {_moved_from(f.domain) if f.is_whole else None for f in parts if f.domain.kind != "any"}
    return found.pop() if len(found) == 1 else None


def _unifiable(a: Domain, b: Domain) -> tuple[Domain, Domain] | None:
    """A domain variable and what it would have to be for two domains to be one; None where none would do."""
    if a.extent != b.extent or b.kind in ("any", "iota") or a.kind in ("any", "iota"):
        return None
    if a.kind == "variable":
        return a, b
    if b.kind == "variable":
        return b, a
    if a.kind == b.kind == "pad":
        return _unifiable(a.args[0], b.args[0])
    return None


def _compare_features(
    call: Call, left: tuple[int, Layout, int], right: tuple[int, Layout, int], contraction: bool
) -> Issue | None:
    (ls, ll, la), (rs, rl, ra) = left, right
    a, b = ll.axes[la], rl.axes[ra]
    if extent_of(a) != extent_of(b):
        return _differ(call, left, right, contraction)
    if not ll.bound and not rl.bound:
        return None
    cuts_a, cuts_b = cut_signature(ll, la), cut_signature(rl, ra)
    if cuts_a == cuts_b:
        return None
    issue = _build(call, left, right, contraction)
    # A weight that is only assumed whole takes the cut that its partner shows.
    if not cuts_b:
        for inner, m in cuts_a:
            call.want("cut", rs, issue, axis=ra, inner=inner, mesh_axes=(m,))
        return None
    if not cuts_a:
        for inner, m in cuts_b:
            call.want("cut", ls, issue, axis=la, inner=inner, mesh_axes=(m,))
        return None
    call.issues.append(issue)
    return issue


def _differ(
    call: Call, left: tuple[int, Layout, int], right: tuple[int, Layout, int], contraction: bool
) -> Issue:
    issue = _build(call, left, right, contraction)
    call.issues.append(issue)
    return issue


def _origin(domain: Domain) -> Domain:
    return base_of(domain)


def _build(
    call: Call, left: tuple[int, Layout, int], right: tuple[int, Layout, int], contraction: bool
) -> Issue:
    """The issue for two axes that differ: which kind of difference it is, in words."""
    (ls, ll, la), (rs, rl, ra) = left, right
    a, b = ll.axes[la], rl.axes[ra]
    code, text = classify(call, ll, la, rl, ra, contraction)
    del a, b
    return Issue(code, text, tuple(s for s in (ls, rs) if s >= 0))


def classify(call: Call, ll: Layout, la: int, rl: Layout, ra: int, contraction: bool) -> tuple[str, str]:
    """Code and sentence for two axes that differ."""
    a, b = ll.axes[la], rl.axes[ra]
    size_a, size_b = extent_of(a), extent_of(b)
    cuts_a = {m for m, _ in bound_on_axis(ll, la)}
    cuts_b = {m for m, _ in bound_on_axis(rl, ra)}
    ctx = call.ctx
    tokens = any(is_token_like(f.domain) for f in a + b)
    if size_a == size_b and (is_wild(a) or is_wild(b)):
        fill, other = (0, 1) if is_wild(a) else (1, 0)
        group = ctx.group(tuple(cuts_a | cuts_b))
        return (
            "LC102",
            f"{{{fill}}} is cut where another rank's share over {group} is, {{{other}}} is this rank's share",
        )
    if contraction and not tokens:
        if not cuts_a and not cuts_b and _unrelated(size_a, size_b):
            return (
                "LC903",
                f"sums over {size_a} elements of {{0}} and {size_b} of {{1}}: no op takes these two",
            )
        return (
            "LC205",
            f"the summed axis holds {size_a} elements of {{0}} and {size_b} of {{1}}, not the same ones",
        )
    if cuts_a and cuts_b and cuts_a != cuts_b:
        return "LC301", (
            f"{{0}} is cut over {ctx.group(tuple(cuts_a))}, {{1}} over {ctx.group(tuple(cuts_b))}: they hold different tokens"
        )
    kinds = [{f.domain.kind for f in axis} for axis in (a, b)]
    bases = [{_origin(f.domain) for f in axis if not f.domain.is_feature} for axis in (a, b)]
    if tokens:
        padded = [any(_through(f.domain, "pad") for f in axis) for axis in (a, b)]
        if cuts_a == cuts_b and padded[0] != padded[1] and bases[0] == bases[1]:
            return (
                "LC401",
                f"{size_a} padded tokens meet {size_b} tokens: {{0}} and {{1}}; pad both, or cut the padding off first",
            )
        if cuts_a != cuts_b:
            # Extents that agree by accident (T < p, T == 1) change nothing.
            full, local = (1, 0) if cuts_a else (0, 1)
            axis = (a, b)[full]
            if "range" in kinds[full] or "pick" in kinds[full]:
                return "LC102", (
                    f"same extent, different tokens: {{{local}}} is this rank's share, "
                    f"{{{full}}} holds {_names(axis)} on every rank"
                )
            if "iota" in kinds[full] and extent_of(axis) == (size_a, size_b)[local]:
                return "LC102", (
                    f"{{{full}}} counts from 0 on every rank, {{{local}}} is this rank's share: "
                    "rank r needs the positions from its own offset on"
                )
            if ("routed" in kinds[0] | kinds[1]) or ("received" in kinds[0] | kinds[1]):
                return "LC101", "rows grouped by expert meet rows in token order: {0} and {1}"
            return "LC101", f"{{{local}}} holds this rank's share of the tokens, {{{full}}} all of them"
        if bases[0] and bases[1] and size_a == size_b:
            if {f.domain for f in a} == {f.domain for f in b}:
                return "LC105", "the same tokens in another order: {0} and {1}"
            return "LC102", f"same extent, different tokens: {_names(a)} and {_names(b)}"
        if bases[0] and bases[1] and bases[0] != bases[1]:
            return "LC102", f"different tokens: {_names(a)} and {_names(b)}"
        if "range" in kinds[0] | kinds[1]:
            return "LC102", f"different tokens: {_names(a)} and {_names(b)}"
    return "LC101", f"{size_a} against {size_b}: {{0}} and {{1}} do not fit"


def _unrelated(a: Size, b: Size) -> bool:
    """Whether two extents can't be one axis of which one operand has a share: neither divides the other."""
    return divide_exact(a, b) is None and divide_exact(b, a) is None


def _through(domain: Domain, kind: str) -> bool:
    seen: Domain | None = domain
    while seen is not None:
        if seen.kind == kind:
            return True
        first = seen.args[0] if seen.args else None
        if isinstance(first, Factor):
            seen = first.domain
        elif isinstance(first, Domain):
            seen = first
        else:
            seen = None
    return False


def _names(axis: Axis) -> str:
    parts = []
    for f in axis:
        text = describe(f.domain)
        parts.append(text if f.is_whole else f"{text} (a share of {f.extent})")
    return "*".join(parts) or "1"
