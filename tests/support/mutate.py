"""Random realistic faults in a clean graph: a collective or a rank's slice that is not what it should be.

Works on the JSON form (`layoutcheck-graph/1`) of any dialect. Only sites where the mutation changes what the
program computes are used; a mutated graph's recorded shapes are removed from the fault downwards, so that a
checker has to find the fault and not a stale shape.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass

from .builder import Json
from .editing import Editor, Unit
from .slices import SLICE_KINDS, role, slice_sites, window

# the next op's other operands are complete, or the op is not linear: summing after it is another value
NOT_LINEAR = ("norm", "silu", "gelu", "softmax", "sigmoid", "relu")
ADDING = ("aten.add.Tensor", "aten.sub.Tensor")
# ops that a sum passes unchanged, with one operand
TRANSPARENT = ("aten.view.default", "aten.reshape.default", "aten.alias.default", "aten._unsafe_view.default")
MATMULS = ("aten.mm.default", "aten.linear.default", "aten.matmul.default")


@dataclass(frozen=True)
class Mutation:
    """A mutated graph, the kind of fault and the node at which it was made."""

    graph: Json
    kind: str
    node: str


Apply = Callable[[Editor, str, random.Random], bool]


def drop(e: Editor, name: str, rng: random.Random) -> bool:
    """Readers read the collective's input."""
    unit = e.unit(name)
    e.replace_uses(unit.out, unit.operand)
    e.remove(unit.out)
    if unit.out != unit.name:
        e.remove(unit.name)
    return True


def double(e: Editor, name: str, rng: random.Random) -> bool:
    """The collective runs a second time on its own result."""
    unit = e.unit(name)
    readers = [n["name"] for n in e.readers(unit.out)]
    again = e.copy_unit(unit, operand=unit.out, after=unit.out)
    e.replace_uses(unit.out, again, only=readers)
    return True


def move_down(e: Editor, name: str, rng: random.Random) -> bool:
    """A reduction runs after the first following op that it does not commute with."""
    unit = e.unit(name)
    if unit.kind not in ("all_reduce", "reduce_scatter"):
        return False
    disjoint = _from_masked_lookup(e, unit.operand)
    choices = []
    for reader in e.readers(unit.out):
        path, at = unit.out, reader
        while unit.kind == "all_reduce" and at["target"] in TRANSPARENT:
            path, following = at["name"], e.readers(at["name"])
            if len(following) != 1:
                break
            at = following[0]
        reads = list(e.operands(at))
        lone = reads.count(path) == 1
        adding = at["target"] in ADDING and len(reads) == 2
        if lone and (adding or (not disjoint and any(word in at["target"] for word in NOT_LINEAR))):
            choices.append((reader, at))
    if not choices:
        return False
    first, op = rng.choice(choices)
    e.replace_uses(unit.out, unit.operand, only=[first["name"]])
    outs = [n["name"] for n in e.readers(op["name"]) if "getitem" in n["target"]] or [op["name"]]
    for out in outs:
        readers = [n["name"] for n in e.readers(out)]
        moved = e.copy_unit(unit, operand=out, after=out)
        e.replace_uses(out, moved, only=readers)
    return True


def _from_masked_lookup(e: Editor, name: str) -> bool:
    """Each row is zero on all ranks but one: a row-wise op that keeps zero may come before the sum."""
    node = e.node(name)
    while node["target"] in TRANSPARENT or "pad" in node["target"]:
        node = e.node(next(iter(e.operands(node))))
    return "where" in node["target"] or "index_put" in node["target"]


def move_up(e: Editor, name: str, rng: random.Random) -> bool:
    """A reduction of a row-parallel product runs on the product's sharded operand instead."""
    unit = e.unit(name)
    if unit.kind not in ("all_reduce", "reduce_scatter"):
        return False
    op = e.node(unit.operand)
    while op["target"] in TRANSPARENT and unit.kind == "all_reduce":
        op = e.node(next(iter(e.operands(op))))
    if op["target"] not in MATMULS or len(e.readers(op["name"])) != 1:
        return False
    operand = next(iter(e.operands(op)))
    moved = e.copy_unit(unit, operand=operand, after=e.before(op["name"]))
    e.replace_uses(operand, moved, only=[op["name"]], first=True)
    return drop(e, name, rng)


def wrong_dimension(e: Editor, name: str, rng: random.Random) -> bool:
    """Gathers or scatters another dimension whose extent is not one."""
    unit = e.unit(name)
    if unit.kind not in ("all_gather", "reduce_scatter") or not unit.size:
        return False
    shape = e.shape(unit.operand)
    if unit.functional:
        return _wrong_dimension_functional(e, unit, shape)
    node = e.node(name)
    old = node["args"][1]
    if shape is None:
        if old not in (0, 1):
            return False
        dims = [-1]
    else:
        dims = [d for d, n in enumerate(shape) if n != 1 and d != old % len(shape)]
        if unit.kind == "reduce_scatter":
            dims = [d for d in dims if isinstance(shape[d], int) and shape[d] % unit.size == 0]
        if shape[old % len(shape)] == 1:  # a stack of single rows: the order in memory may be the same
            return False
    if not dims:
        return False
    node["args"][1] = rng.choice(dims)
    return True


def _wrong_dimension_functional(e: Editor, unit: Unit, shape: list[int | str] | None) -> bool:
    """Functional collectives work on dimension 0; another one is spelled with chunk and cat around them."""
    if not shape or len(shape) < 2 or shape[-1] == 1:
        return False
    if unit.kind == "all_gather":
        readers = [n["name"] for n in e.readers(unit.out)]
        if any(
            word in e.node(r)["target"] for r in readers for word in ("chunk", "split", "view", "reshape")
        ):
            return False
        moved = e.chunk_cat(unit.out, unit.size, chunk_dim=0, cat_dim=-1)
        e.replace_uses(unit.out, moved, only=readers)
        return True
    if not isinstance(shape[-1], int) or shape[-1] % unit.size:
        return False
    if any(word in e.node(unit.operand)["target"] for word in ("cat", "view")):
        return False
    moved = e.chunk_cat(unit.operand, unit.size, chunk_dim=-1, cat_dim=0)
    e.replace_uses(unit.operand, moved, only=[unit.name])
    return True


def wrong_group(e: Editor, name: str, rng: random.Random) -> bool:
    """The collective runs over half of its ranks."""
    unit = e.unit(name)
    if not unit.size or unit.size < 4 or unit.size % 2 or unit.kind == "all_to_all":
        return False
    node = e.node(name)
    if not unit.functional:
        ranks = node["args"][-1]
        half = ranks[: len(ranks) // 2] if e.rank in ranks[: len(ranks) // 2] else ranks[len(ranks) // 2 :]
        node["args"][-1] = half
        return True
    other = f"{unit.group}_half"
    ranks = e.graph["config"].get("groups", {}).get(unit.group, list(range(unit.size)))
    half = ranks[: len(ranks) // 2] if e.rank in ranks[: len(ranks) // 2] else ranks[len(ranks) // 2 :]
    e.graph["config"].setdefault("groups", {})[other] = half
    node["args"] = [
        other if a == unit.group else unit.size // 2 if a == unit.size else a for a in node["args"]
    ]
    return True


def swap(e: Editor, name: str, rng: random.Random) -> bool:
    """reduce_scatter where all_reduce belongs, or the other way round."""
    unit = e.unit(name)
    node = e.node(name)
    if unit.kind == "reduce_scatter":
        if unit.functional:
            node["target"] = "_c10d_functional.all_reduce.default"
            node["args"] = [node["args"][0], node["args"][1], unit.group]
        else:
            node["target"] = "tensor_cast.all_reduce.default"
            node["args"] = [node["args"][0], *node["args"][2:]]
        return True
    if unit.kind != "all_reduce" or not unit.size:
        return False
    readers = e.readers(unit.out)
    if all(role(e, r) == "rank" and (window(r) or (0, 1))[1] == 0 for r in readers):
        return False  # on the first rank, cutting what is scattered already is an identity
    shape = e.shape(unit.operand)
    if unit.functional:
        if shape and shape[0] == 1:  # functional scatters work on dimension 0, which holds nothing here
            return False
        node["target"] = "_c10d_functional.reduce_scatter_tensor.default"
        node["args"] = [node["args"][0], node["args"][1], unit.size, unit.group]
    else:
        node["target"] = "tensor_cast.reduce_scatter.default"
        node["args"].insert(1, 1 if shape and shape[0] == 1 else 0)
    return True


COLLECTIVE_KINDS: dict[str, Apply] = {
    "collective-dropped": drop,
    "collective-doubled": double,
    "collective-moved-down": move_down,
    "collective-moved-up": move_up,
    "collective-wrong-dimension": wrong_dimension,
    "collective-wrong-group": wrong_group,
    "collective-swapped": swap,
}


def mutations(graph: Json, seed: int, limit: int, strip: bool = True) -> list[Mutation]:
    """Up to `limit` different mutations of a clean graph, the kinds in equal shares where they apply."""
    rng = random.Random(seed)
    base = Editor(copy.deepcopy(graph))
    sites: list[tuple[str, str]] = []
    for name in base.collectives():
        sites += [(kind, name) for kind in COLLECTIVE_KINDS]
    sites += slice_sites(base)
    rng.shuffle(sites)
    order: dict[str, int] = {}
    ranked = []
    for kind, name in sites:
        order[kind] = order.get(kind, 0) + 1
        ranked.append((order[kind], kind, name))
    ranked.sort(key=lambda item: item[0])
    found: list[Mutation] = []
    for _, kind, name in ranked:
        if len(found) == limit:
            break
        editor = Editor(copy.deepcopy(graph))
        apply = COLLECTIVE_KINDS.get(kind) or SLICE_KINDS[kind]
        if apply(editor, name, rng):
            if name in editor.index:
                editor.touched.add(name)
            if strip:
                editor.strip_below()
            found.append(Mutation(editor.graph, kind, name))
    return found


def mutate(graph: Json, seed: int, strip: bool = True) -> Mutation | None:
    """One random mutation, or None where the graph holds no site."""
    found = mutations(graph, seed, 1, strip)
    return found[0] if found else None
