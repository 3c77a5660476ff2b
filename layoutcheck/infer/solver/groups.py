"""Which groups a program communicates over: rank lists, torch's group names, declared sizes."""

from __future__ import annotations

from math import prod
from typing import Any

from layoutcheck.errors import InputError
from layoutcheck.mesh import Mesh, build_mesh
from layoutcheck.program import Program
from layoutcheck.rules.kinds import GOING_UP
from layoutcheck.sizes.text import parse_size
from layoutcheck.symbols import Expr, Size

_CONFIG = (("tp_size", "tp"), ("dp_size", "dp"), ("cp_size", "cp"), ("ep_size", "ep"))


def _options(instance: Any) -> list[tuple[str, dict[str, str]]]:
    rule = instance.rule
    out = []
    if rule is not None:
        if rule.code:
            out.append((rule.code, dict(rule.options)))
        out.extend((name, dict(options)) for name, options in rule.then)
    return out


def find_mesh(
    p: Program, groups: dict[str, Any], rank: int | None, world: int | None, notes: list[str] | None = None
) -> Mesh:
    """The mesh of a program.

    Args:
        groups: declared sizes by name (an int, or a symbol's name).

    Raises:
        InputError: contradicting or malformed groups.
    """
    given_rank = rank
    lists: set[tuple[int, ...]] = set()
    sharing: set[tuple[int, ...]] = set()
    named: dict[str, Size] = {}
    unsized: set[str] = set()
    declared: dict[str, Size] = {}
    for name, size in groups.items():
        declared[name] = size if isinstance(size, int) else parse_size(str(size))
        if isinstance(declared[name], int) and declared[name] < 1:  # type: ignore[operator]
            raise InputError(f"the group {name} has size {size}", "--group")
    used = {op for op in p.op if op >= 0}
    own_rank: int | None = None
    for index in used:
        instance = p.instances[index]
        for code, options in _options(instance):
            ranks = instance.params.get(options.get("ranks", ""))
            if (
                isinstance(ranks, (tuple, list))
                and ranks
                and all(isinstance(r, int) and not isinstance(r, bool) for r in ranks)
            ):
                key = tuple(sorted(ranks))
                lists.add(key)
                if code in GOING_UP:
                    sharing.add(key)
                said = instance.params.get(options.get("rank", ""))
                if isinstance(said, int) and own_rank is None:
                    own_rank = said
            group_name = instance.params.get(options.get("group", ""))
            if isinstance(group_name, str):
                name = group_name
                size = instance.params.get(options.get("size", ""))
                if isinstance(size, (int, Expr)) and not isinstance(size, bool):
                    named.setdefault(name, size)
                elif name not in named:
                    unsized.add(name)
    config = p.graph.config
    for name in sorted(unsized - set(named)):
        size_known = declared.get(name)
        if size_known is None and named and len(set(named.values())) == 1:
            size_known = next(iter(named.values()))
        if size_known is None and len(declared) == 1:
            size_known = next(iter(declared.values()))
        if size_known is None and isinstance(config.get("world_size"), int):
            size_known = config["world_size"]
        if size_known is None:
            raise InputError(
                f"the size of group {name!r} is not in the graph; give it with --group {name}=SIZE", "group"
            )
        named[name] = size_known
    aliases: dict[str, Size] = dict(declared)
    for key_name, alias in _CONFIG:
        size = config.get(key_name)
        if isinstance(size, int) and size > 1 and alias not in aliases:
            aliases[alias] = size
    named_lists: dict[str, tuple[int, ...]] = {}
    configured = config.get("groups")
    if isinstance(configured, dict):
        for name, ranks in configured.items():
            if (
                isinstance(ranks, (list, tuple))
                and ranks
                and all(isinstance(r, int) and not isinstance(r, bool) for r in ranks)
            ):
                named_lists[str(name)] = tuple(ranks)
    if named and not all(name in named_lists for name in named):
        # Some of torch's names have no ranks: sizes alone then say which groups there are.
        for name, ranks in named_lists.items():
            if name in named:
                continue
            aliases.setdefault(name, len(ranks))
        named_lists = {}
    else:
        for name in named:
            sharing.add(tuple(sorted(named_lists[name])))
        named = {}
    if rank is None:
        # What the collectives say of their own rank counts more than the file's header.
        rank = own_rank if own_rank is not None else p.graph.rank
    if world is None and isinstance(config.get("world_size"), int):
        world = config["world_size"]
    if not lists and not named and not named_lists and not declared:
        return build_mesh([], {}, rank=rank)
    known = [*lists, *named_lists.values()]
    if given_rank is not None and known and not any(given_rank in ranks for ranks in known):
        raise InputError(f"rank {given_rank} is in none of the graph's groups of ranks", "--rank")
    mesh = build_mesh(
        lists, named, aliases=aliases, rank=rank, world=world, sharing=sharing, named_lists=named_lists
    )
    if given_rank is not None and not known:
        _check_rank(given_rank, mesh, world)
    for name, size in declared.items():
        found = mesh.groups.get(name)
        if found is not None and isinstance(size, int) and isinstance(found.size, int) and found.size != size:
            raise InputError(
                f"{name} is said to be of {size} ranks, in the graph it has {found.size}", "--group"
            )
    return mesh


def _check_rank(rank: int, mesh: Mesh, world: int | None) -> None:
    """Raise InputError where a rank's number is beyond all ranks that the groups are made of."""
    count = world
    if count is None:
        sizes = [axis.size for axis in mesh.axes]
        numbers = [size for size in sizes if isinstance(size, int)]
        count = prod(numbers) if len(numbers) == len(sizes) else None
    if count is not None and not 0 <= rank < count:
        more = "" if world is not None else "; where there are more, say so with --world"
        raise InputError(f"there is no rank {rank} among {count} ranks{more}", "--rank")
