"""Reading contracts: `layoutcheck-contract/1` in JSON, shipped ones by name, a user's own by path.

Messages name the file and the place in it, as in `mine.json: boundaries[2].require`.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from layoutcheck.contracts.model import (
    CHAIN,
    CONDITIONS,
    CONVERSIONS,
    KINDS,
    OPERANDS,
    STATES,
    TRUSTS,
    Boundary,
    Contract,
)
from layoutcheck.documents import read_document
from layoutcheck.errors import InputError
from layoutcheck.resources import rules_dir

FORMAT = "layoutcheck-contract/1"
_KEYS = ("format", "name", "doc", "group", "extends", "without", "applies", "boundaries")
_BOUNDARY_KEYS = (
    *("role", "operand", "where", "require", "at_most", "at_least", "via", "carry", "count", "trust", "doc"),
)
MAX_DEPTH = 8


def contract_names() -> list[str]:
    """The names of the shipped contracts, in alphabetical order."""
    return sorted(path.stem for path in (rules_dir() / "contracts").glob("*.json"))


def load_contract(name: str | Path) -> Contract:
    """A shipped contract by its name, or one from a file (whatever ends in `.json` or holds a path separator).

    Raises:
        InputError: there is no such contract, or the file is malformed.
    """
    return _load(name, Path(), 0)


def _load(name: str | Path, beside: Path, depth: int) -> Contract:
    text = str(name)
    if depth > MAX_DEPTH:
        raise InputError("contracts extend each other in a circle", where=text)
    if text in contract_names():
        return _read(rules_dir() / "contracts" / f"{text}.json", depth)
    path = beside / text
    if text.endswith(".json") or path.is_file():
        return _read(path, depth)
    near = difflib.get_close_matches(text, contract_names(), 1)
    hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(contract_names())}"
    raise InputError(f"there is no contract {text!r}{hint}", where="--contract")


def _read(path: Path, depth: int) -> Contract:
    document = read_document(path, "a contract", form=FORMAT)
    return parse_contract(document, str(path), depth)


def parse_contract(document: Any, where: str = "<contract>", depth: int = 0) -> Contract:
    """The contract that a JSON document denotes.

    Raises:
        InputError: the document is malformed; the message names the place.
    """
    top = _object(document, where, _KEYS)
    if top.get("format") != FORMAT:
        raise InputError(f"`format` is {FORMAT!r}, not {top.get('format')!r}", where=where)
    name = _text(top, "name", where)
    if not name:
        raise InputError("a contract needs a `name`", where=where)
    base: Contract | None = None
    if "extends" in top:
        base = _load(_text(top, "extends", where), Path(where).parent, depth + 1)
    own = _boundaries(top.get("boundaries", []), where)
    boundaries = list(base.boundaries) if base is not None else []
    for i, gone in enumerate(_list(top.get("without", []), f"{where}: without")):
        words = tuple(str(gone).split())
        kept = [b for b in boundaries if words not in ((b.role,), (b.role, b.operand), (*b.key[:2], b.where))]
        if len(kept) == len(boundaries):
            raise InputError(f"there is no boundary {gone!r} to leave out", where=f"{where}: without[{i}]")
        boundaries = kept
    for boundary in own:
        at = next((i for i, b in enumerate(boundaries) if b.key == boundary.key), None)
        if at is None:
            boundaries.append(boundary)
        else:
            boundaries[at] = boundary
    if not boundaries:
        raise InputError("a contract needs at least one boundary", where=where)
    applies = dict(base.applies) if base is not None else {}
    given = _object(top.get("applies", {}), f"{where}: applies", CONDITIONS)
    for key, value in given.items():
        if not isinstance(value, bool):
            raise InputError(f"`{key}` is true or false, not {value!r}", where=f"{where}: applies")
        applies[key] = value
    group = _text(top, "group", where) or (base.group if base is not None else "tp")
    return Contract(
        name=name,
        boundaries=tuple(boundaries),
        group=group,
        applies=tuple(sorted(applies.items())),
        doc=_text(top, "doc", where),
        source=where,
    )


def _boundaries(value: Any, where: str) -> list[Boundary]:
    found: list[Boundary] = []
    for i, item in enumerate(_list(value, f"{where}: boundaries")):
        at = f"{where}: boundaries[{i}]"
        boundary = _boundary(_object(item, at, _BOUNDARY_KEYS), at)
        if any(b.key == boundary.key for b in found):
            raise InputError(f"the boundary {boundary.title} stands twice", where=at)
        found.append(boundary)
    return found


def _boundary(item: dict[str, Any], at: str) -> Boundary:
    role = _choice(item.get("role"), tuple(OPERANDS), f"{at}.role")
    operands = OPERANDS[role]
    operand = _choice(
        item.get("operand", operands[0] if len(operands) == 1 else "output"), operands, f"{at}.operand"
    )
    where = None if "where" not in item else _choice(item["where"], KINDS, f"{at}.where")
    require = item.get("require", [])
    states = [require] if isinstance(require, str) else _list(require, f"{at}.require")
    via = None
    if "via" in item:
        ways = [] if item["via"] == "none" else item["via"]
        ways = [ways] if isinstance(ways, str) else _list(ways, f"{at}.via")
        via = tuple(_choice(w, CONVERSIONS, f"{at}.via") for w in ways)
    boundary = Boundary(
        role=role,
        operand=operand,
        where=where,
        require=tuple(_choice(s, STATES, f"{at}.require") for s in states),
        at_most=_optional(item, "at_most", tuple(CHAIN), at),
        at_least=_optional(item, "at_least", tuple(CHAIN), at),
        via=via,
        carry=_optional(item, "carry", tuple(CHAIN), at),
        count=_count(item.get("count", {}), f"{at}.count"),
        trust=_optional(item, "trust", TRUSTS, at),
        doc=_text(item, "doc", at),
    )
    _consistent(boundary, at)
    return boundary


def _consistent(b: Boundary, at: str) -> None:
    states = b.require or b.at_most or b.at_least or b.via is not None or b.carry
    if not (states or b.count or b.trust):
        raise InputError(
            "a boundary demands something: require, at_most, at_least, via, carry, count, trust", at
        )
    if b.role == "layer" and (states or b.trust):
        raise InputError("of a layer as a whole only `count` can be said", at)
    if b.carry and (b.role, b.operand) != ("residual", "output"):
        raise InputError("`carry` speaks of what layers hand on: residual output", at)
    if b.require and (b.at_most or b.at_least):
        raise InputError("`require` says all that at_most and at_least could", at)
    if b.at_most and b.at_least and CHAIN[b.at_most] > CHAIN[b.at_least]:
        raise InputError(f"nothing is at most {b.at_most} and at least {b.at_least}", at)


def _count(value: Any, at: str) -> tuple[tuple[str, int, int], ...]:
    found = []
    for kind, number in _object(value, at, CONVERSIONS).items():
        low, high = (number, number) if not isinstance(number, list) else (*number, None, None)[:2]
        if (
            not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in (low, high))
            or low > high
        ):
            raise InputError(f"{kind} is a number or [least, most], not {number!r}", at)
        found.append((kind, low, high))
    return tuple(found)


def _object(value: Any, where: str, keys: Sequence[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"here belongs an object, not {type(value).__name__}", where)
    for key in value:
        if key not in keys:
            near = difflib.get_close_matches(str(key), keys, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(keys)}"
            raise InputError(f"unknown key {key!r}; {hint}", where)
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise InputError(f"here belongs a list, not {type(value).__name__}", where)
    return value


def _text(item: dict[str, Any], key: str, where: str) -> str:
    value = item.get(key, "")
    if not isinstance(value, str):
        raise InputError(f"`{key}` is text, not {value!r}", where)
    return value


def _choice(value: Any, among: Sequence[str], where: str) -> str:
    if isinstance(value, str) and value in among:
        return value
    near = difflib.get_close_matches(value, among, 1) if isinstance(value, str) else []
    hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(among)} is meant"
    raise InputError(f"unknown {value!r}; {hint}", where)


def _optional(item: dict[str, Any], key: str, among: Sequence[str], at: str) -> str | None:
    return None if key not in item else _choice(item[key], among, f"{at}.{key}")
