"""Faults of slices: the rank's share of a token axis, and the cut back from padded to own tokens."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from .editing import Editor

Apply = Callable[[Editor, str, random.Random], bool]


def window(node: dict[str, Any]) -> tuple[int, Any, Any, Any] | None:
    """(dim, start, stop, length) of a slice or narrow; stop or length is None where the other is given."""
    args = list(node["args"])
    if node["target"] == "aten.narrow.default":
        return args[1], args[2], None, args[3]
    if node["target"] != "aten.slice.Tensor":
        return None
    args += [0, None, None, 1][len(args) - 1 :]
    _, dim, start, stop, step = args[:5]
    return None if step != 1 else (dim, 0 if start is None else start, stop, None)


def _is_share(text: Any) -> bool:
    return isinstance(text, str) and any(word in text for word in ("//", "FloorDiv", "floordiv", "ceil"))


def role(e: Editor, node: dict[str, Any]) -> str:
    """`rank` (this rank's share), `unpad` (the first T of the padded tokens), or '' for anything else."""
    cut = window(node)
    shape = e.shape(next(iter(e.operands(node)), node["name"])) if cut else None
    if cut is None or not shape:
        return ""
    dim, start, stop, length = cut
    extent = shape[dim % len(shape)]
    if dim % len(shape) == len(shape) - 1 and len(shape) > 1:
        return ""  # features
    if (
        isinstance(extent, int)
        and isinstance(start, int)
        and (isinstance(stop, int) or isinstance(length, int))
    ):
        size = min(stop, extent) - start if length is None else length
        if size <= 0 or size >= extent:
            return ""
        groups = {e.unit(c).size for c in e.collectives()}
        if extent % size == 0 and extent // size in groups and start == e.rank % (extent // size) * size:
            return "rank"
        made = e.node(next(iter(e.operands(node))))["target"]
        return "unpad" if start == 0 and ("all_gather" in made or "wait_tensor" in made) else ""
    out = e.shape(node["name"])
    got = out[dim % len(out)] if out else None
    if got is None or got == extent:
        return ""
    if _is_share(got):
        return "rank"
    return "unpad" if start == 0 and _is_share(extent) else ""


def slice_sites(e: Editor) -> list[tuple[str, str]]:
    """(kind, node) of every slice mutation that may apply."""
    live = e.live()
    sites: list[tuple[str, str]] = []
    ranked = []
    for n in e.nodes:
        if n["op"] != "call_function" or n["name"] not in live:
            continue
        what = role(e, n)
        if what:
            sites.append(("slice-dropped", n["name"]))
        if what == "rank":
            ranked.append(n["name"])
    # where the export does not say its rank, a lone slice of another rank is that rank's export
    if e.graph.get("rank") is not None or len(ranked) > 1:
        sites += [(kind, name) for name in ranked for kind in ("slice-constant", "slice-other-rank")]
    return sites


def drop(e: Editor, name: str, rng: random.Random) -> bool:
    """Readers read the whole."""
    e.replace_uses(name, next(iter(e.operands(e.node(name)))))
    e.remove(name)
    return True


def _set(e: Editor, name: str, start: Any, size: Any, stop: Any) -> None:
    n = e.node(name)
    dim = n["args"][1] if len(n["args"]) > 1 else 0
    tail = [start, size] if n["target"] == "aten.narrow.default" else [start, stop]
    n["args"] = [n["args"][0], dim, *tail]
    n.pop("kwargs", None)
    e.touched.add(name)


def constant(e: Editor, name: str, rng: random.Random) -> bool:
    """The same rows on every rank: at an offset that is no rank's, or at 0 where this rank's is not."""
    _, start, stop, length = window(e.node(name)) or (0, 0, 0, 0)
    if isinstance(start, int) and (isinstance(stop, int) or isinstance(length, int)):
        size = length if length is not None else stop - start
        if start:
            _set(e, name, 0, size, size)
        elif size > 1:
            _set(e, name, size // 2, size, size // 2 + size)
        else:
            return False
        return True
    if start == 0 or length is None:
        return False
    _set(e, name, 0, length, None)
    return True


def other_rank(e: Editor, name: str, rng: random.Random) -> bool:
    """The rows of another rank."""
    node = e.node(name)
    dim, start, stop, length = window(node) or (0, 0, 0, 0)
    if isinstance(start, int) and (isinstance(stop, int) or isinstance(length, int)):
        size = length if length is not None else stop - start
        shape = e.shape(next(iter(e.operands(node))))
        assert shape is not None
        extent = shape[dim]
        assert isinstance(extent, int)
        others = [i for i in range(extent // size) if i * size != start]
        at = rng.choice(others) * size
        _set(e, name, at, size, at + size)
        return True
    size = length if length is not None else stop
    if not isinstance(size, dict) or (start != 0 and length is None):
        return False
    if start == 0:
        stop = e.call("_operator.mul", [size, 2], e.before(name), "twice_fault") if length is None else None
        _set(e, name, size, size, {"node": stop})
    else:
        _set(e, name, 0, size, None)
    return True


SLICE_KINDS: dict[str, Apply] = {
    "slice-dropped": drop,
    "slice-constant": constant,
    "slice-other-rank": other_rank,
}
