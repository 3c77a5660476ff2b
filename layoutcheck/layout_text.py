"""Layouts written as text: `[T/4@tp, 64] +tp {expert/4@tp}`.

Axes are separated by commas; an axis is a product of factors `B*T`; a factor is a token domain's name, an integer feature, or
either cut over groups, `T/4@tp`, `256/4@tp`; `pad(T)` is the tokens with padding behind them. After the bracket `+tp` marks a
pending sum, `{name/4@tp}` a factor on no axis.
"""

from __future__ import annotations

import re

from layoutcheck.domains import Factor, factor, feature, padded, token
from layoutcheck.errors import InputError
from layoutcheck.layouts import Axis, Layout, layout
from layoutcheck.mesh import Group, Mesh
from layoutcheck.symbols import Size, cdiv, divide_exact

_WHOLE = re.compile(r"^\s*(?:\w+)?\[(?P<axes>.*)\](?P<rest>[^\]]*)$", re.DOTALL)
_FACTOR = re.compile(r"^(?P<name>[A-Za-z_][\w.]*|\d+)(?P<cuts>(?:/\w+@[\w*/]+)*)$")
_CUT = re.compile(r"/(\w+)@(\w+)")
_REST = re.compile(r"\s*(?:\+(?P<pending>[\w]+)|\{(?P<name>\w+)/(?P<ways>\w+)@(?P<group>\w+)\})")
_PADDED = re.compile(r"^pad\((?P<name>[A-Za-z_]\w*)\)$")
MAX_TEXT = 4096


def _group(mesh: Mesh, name: str, where: str) -> Group:
    group = mesh.groups.get(name)
    if group is None:
        for axis in mesh.axes:
            if axis.name == name:
                return Group(name, (axis.index,), axis.size)
        known = ", ".join(sorted({*mesh.groups, *(a.name for a in mesh.axes)})) or "none"
        raise InputError(
            f"there is no group `{name}` (known: {known}); name it with --group {name}=SIZE", where
        )
    return group


def parse_layout(
    text: str,
    mesh: Mesh,
    dtype: str,
    shape: tuple[Size, ...],
    where: str,
    known: dict[str, Size] | None = None,
) -> Layout:
    """A layout from its text; extents come from the local shape.

    Args:
        known: extents of token domains by name where they are known already; others are added.

    Raises:
        InputError: the text is malformed, names an unknown group or does not fit the shape.
    """
    if len(text) > MAX_TEXT:
        raise InputError("a layout of more than 4096 characters", where)
    found = _WHOLE.match(text)
    if found is None:
        raise InputError(f"`{text}` is no layout; write one as [T/4@tp, 64]", where)
    known = {} if known is None else known
    body = found.group("axes").strip()
    parts = [p.strip() for p in body.split(",")] if body else []
    if len(parts) != len(shape):
        raise InputError(f"`{text}` has {len(parts)} axes, the tensor has {len(shape)}", where)
    bound: dict[int, tuple[Factor, ...]] = {}
    axes: list[Axis] = []
    for part, size in zip(parts, shape, strict=True):
        axes.append(_axis(part, size, mesh, bound, known, where))
    pending: list[int] = []
    rest = found.group("rest")
    at = 0
    while at < len(rest.rstrip()):
        more = _REST.match(rest, at)
        if more is None:
            raise InputError(f"`{rest[at:].strip()}` is no `+group` and no `{{name/ways@group}}`", where)
        at = more.end()
        if more.group("pending"):
            pending.extend(_group(mesh, more.group("pending"), where).axes)
        else:
            group = _group(mesh, more.group("group"), where)
            _check_ways(more.group().strip(), more.group("ways"), group, where)
            for m in group.axes:
                bound[m] = (*bound.get(m, ()), feature(group.size).whole)
    return layout(dtype, tuple(axes), bound, tuple(sorted(set(pending))))


def check_text(text: str, mesh: Mesh, where: str) -> None:
    """Raise InputError where a text is no layout over the mesh's groups, whatever the shape."""
    found = _WHOLE.match(text) if len(text) <= MAX_TEXT else None
    if found is None:
        raise InputError(f"`{text[:80]}` is no layout; write one as [T/4@tp, 64]", where)
    body = found.group("axes").strip()
    axes = [part.strip() for part in body.split(",")] if body else []
    parse_layout(f"[]{found.group('rest')}", mesh, "float32", (), where)
    for axis in axes:
        for piece in axis.split("*") if axis != "*" else ():
            cuts = _FACTOR.match(piece.strip())
            if cuts is None and piece.strip() != "_" and _PADDED.match(axis) is None:
                raise InputError(f"`{piece.strip()}` is no factor; write T, 64, T/4@tp or 256/4@tp", where)
            for ways, name in _CUT.findall(piece):
                _check_ways(axis, ways, _group(mesh, name, where), where)


def _check_ways(text: str, ways: str, group: Group, where: str) -> None:
    if ways.isdigit() and isinstance(group.size, int) and int(ways) != group.size:
        raise InputError(f"`{text}` divides by {ways}, but {group.name} has {group.size} ranks", where)


def _axis(
    text: str,
    size: Size,
    mesh: Mesh,
    bound: dict[int, tuple[Factor, ...]],
    known: dict[str, Size],
    where: str,
) -> Axis:
    if text in ("*", "_"):
        return (feature(size).whole,)
    behind = _PADDED.match(text)
    if behind is not None and behind.group("name") in known:
        name = behind.group("name")
        return (padded(token(name, known[name]), size).whole,)
    pieces = [p.strip() for p in text.split("*")]
    rest = size
    parsed = []
    for piece in pieces:
        found = _FACTOR.match(piece)
        if found is None:
            raise InputError(f"`{piece}` is no factor; write T, 64, T/4@tp or 256/4@tp", where)
        name = found.group("name")
        cuts = [(w, _group(mesh, g, where)) for w, g in _CUT.findall(found.group("cuts"))]
        parsed.append((name, cuts))
    for _, cuts in parsed:
        for ways, group in cuts:
            _check_ways(text, ways, group, where)
    unknown = [i for i, (name, _) in enumerate(parsed) if not name.isdigit() and name not in known]
    local: list[Size | None] = []
    for i, (name, cuts) in enumerate(parsed):
        extent: Size | None = int(name) if name.isdigit() else known.get(name)
        if extent is not None:
            for _, group in cuts:
                extent = cdiv(extent, group.size)
        local.append(extent if i not in unknown else None)
    for extent in local:
        if extent is not None:
            divided = divide_exact(rest, extent)
            if divided is None:
                raise InputError(f"`{text}` does not fit an axis of {size}", where)
            rest = divided
    if len(unknown) > 1:
        raise InputError(
            f"the extents of `{text}` are not known; declare one of its domains elsewhere first", where
        )
    if unknown:
        local[unknown[0]] = rest
    elif rest != 1:
        raise InputError(f"`{text}` does not fit an axis of {size}", where)
    axis: list[Factor] = []
    for (name, cuts), extent in zip(parsed, local, strict=True):
        assert extent is not None
        axis.append(_factor(name, cuts, extent, bound, known, mesh))
    return tuple(axis)


def _factor(
    name: str,
    cuts: list[tuple[str, Group]],
    extent: Size,
    bound: dict[int, tuple[Factor, ...]],
    known: dict[str, Size],
    mesh: Mesh,
) -> Factor:
    total = extent
    for _, group in cuts:
        total = total * group.size
    if name.isdigit():
        domain = feature(total)
    else:
        base = known.setdefault(name, total)
        domain = padded(token(name, base), total)
    stride: Size = total
    for _, group in cuts:
        for m in group.axes:
            ways = mesh.size(m)
            exact = divide_exact(stride, ways)
            stride = exact if exact is not None else extent
            bound[m] = (*bound.get(m, ()), factor(domain, stride, ways))
    return factor(domain, 1, extent)
