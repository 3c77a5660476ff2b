"""Reading contracts: `layoutcheck-contract/1` in JSON, shipped ones by name, a user's own by path.

Messages name the file, the line and the place in it, as in `mine.json:7: boundaries[2].require`.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from layoutcheck.contracts.model import (
    CHAIN,
    CONDITIONS,
    CONVERSIONS,
    KINDS,
    OPERANDS,
    PLACES,
    STATES,
    TRUSTS,
    WEIGHTS,
    Boundary,
    Contract,
)
from layoutcheck.contracts.places import Place, Steps, lines_of
from layoutcheck.documents import LARGEST, read_document
from layoutcheck.errors import InputError
from layoutcheck.resources import rules_dir

FORMAT = "layoutcheck-contract/1"
_KEYS = ("format", "name", "doc", "group", "extends", "without", "applies", "boundaries")
_BOUNDARY_KEYS = (
    *(
        "role",
        "operand",
        "where",
        "require",
        "at_most",
        "at_least",
        "via",
        "carry",
        "count",
        "trust",
        "doc",
        "weights",
    ),
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
    return _load(name, Path(), 0, "--contract")


def _load(name: str | Path, beside: Path, depth: int, where: str) -> Contract:
    text = str(name)
    if depth > MAX_DEPTH:
        raise InputError("contracts extend each other in a circle", where)
    if text in contract_names():
        return _read(rules_dir() / "contracts" / f"{text}.json", depth)
    path = beside / text
    if text.endswith(".json") or path.is_file():
        return _read(path, depth)
    near = difflib.get_close_matches(text, contract_names(), 1)
    hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(contract_names())}"
    raise InputError(f"there is no contract {text!r}{hint}", where)


def _read(path: Path, depth: int) -> Contract:
    lines = _lines(path)
    document = read_document(path, "a contract", form=FORMAT)
    return _parsed(document, Place(str(path), lines=lines), depth)


def _lines(path: Path) -> Mapping[Steps, int]:
    """The lines of a file's values; none where the file is no JSON, which is for its reader to say."""
    try:
        if path.stat().st_size > LARGEST:
            return {}
        return lines_of(path.read_text(encoding="utf-8-sig"), str(path))
    except InputError:
        raise
    except (OSError, ValueError, IndexError, RecursionError):
        return {}


def parse_contract(document: Any, where: str = "<contract>") -> Contract:
    """The contract that a JSON document denotes; `where` names the document in messages.

    Raises:
        InputError: the document is malformed; the message names the place.
    """
    return _parsed(document, Place(where), 0)


def _parsed(document: Any, at: Place, depth: int) -> Contract:
    top = _object(document, at, _KEYS)
    if top.get("format") != FORMAT:
        raise InputError(f"`format` is {FORMAT!r}, not {top.get('format')!r}", at.of_key("format"))
    name = _text(top, "name", at)
    if not name:
        raise InputError("a contract needs a `name`", at.of_key("name"))
    base: Contract | None = None
    if "extends" in top:
        beside = Path(at.file).parent
        base = _load(_text(top, "extends", at), beside, depth + 1, str(at / "extends"))
    own = _boundaries(top.get("boundaries", []), at / "boundaries")
    boundaries = list(base.boundaries) if base is not None else []
    for i, gone in enumerate(_list(top.get("without", []), at / "without")):
        words = tuple(str(gone).split())
        kept = [b for b in boundaries if words not in ((b.role,), (b.role, b.operand), (*b.key[:2], b.where))]
        if len(kept) == len(boundaries):
            raise InputError(f"there is no boundary {gone!r} to leave out", str(at / "without" / i))
        boundaries = kept
    for boundary in own:
        old = [b for b in boundaries if boundary.replaces(b)]
        place = boundaries.index(old[0]) if old else len(boundaries)
        boundaries = [b for b in boundaries if b not in old]
        boundaries.insert(place, boundary)
    applies = dict(base.applies) if base is not None else {}
    given = _object(top.get("applies", {}), at / "applies", CONDITIONS)
    for key, value in given.items():
        if not isinstance(value, bool):
            raise InputError(f"`{key}` is true or false, not {value!r}", (at / "applies").of_key(key))
        applies[key] = value
    if not boundaries:
        raise InputError("a contract needs at least one boundary", at.of_key("boundaries"))
    group = _text(top, "group", at) or (base.group if base is not None else "tp")
    return Contract(
        name=name,
        boundaries=tuple(boundaries),
        group=group,
        applies=tuple(sorted(applies.items())),
        doc=_text(top, "doc", at),
        source=at.file,
    )


def _boundaries(value: Any, at: Place) -> list[Boundary]:
    found: list[Boundary] = []
    for i, item in enumerate(_list(value, at)):
        boundary = _boundary(_object(item, at / i, _BOUNDARY_KEYS), at / i)
        if any(b.key == boundary.key for b in found):
            raise InputError(f"the boundary {boundary.title} stands twice", str(at / i))
        found.append(boundary)
    return found


def _boundary(item: dict[str, Any], at: Place) -> Boundary:
    if "role" not in item:
        raise InputError("a boundary needs a `role`", str(at))
    role = _choice(item["role"], tuple(OPERANDS), at / "role")
    operands = OPERANDS[role]
    operand = _choice(
        item.get("operand", operands[0] if len(operands) == 1 else "output"), operands, at / "operand"
    )
    where = _optional(item, "where", KINDS, at)
    if where is not None and where not in PLACES[role]:
        among = " or ".join(PLACES[role])
        said = f"it is in blocks that are {among}" if among else "it is in no block"
        raise InputError(f"{role} is never {where}: {said}", str(at / "where"))
    require = item.get("require")
    states = [require] if isinstance(require, str) else _some(item, "require", at)
    via = None
    if "via" in item:
        ways = [] if item["via"] == "none" else item["via"]
        ways = [ways] if isinstance(ways, str) else _list(ways, at / "via")
        via = tuple(_choice(w, CONVERSIONS, at / "via") for w in ways)
    boundary = Boundary(
        role=role,
        operand=operand,
        where=where,
        require=tuple(_choice(s, STATES, at / "require") for s in states),
        at_most=_optional(item, "at_most", tuple(CHAIN), at),
        at_least=_optional(item, "at_least", tuple(CHAIN), at),
        via=via,
        carry=_optional(item, "carry", tuple(CHAIN), at),
        count=_count(item["count"], at / "count") if "count" in item else (),
        trust=_optional(item, "trust", TRUSTS, at),
        doc=_text(item, "doc", at),
        weights=_weights(item, at),
    )
    _consistent(boundary, at)
    return boundary


def _weights(item: dict[str, Any], at: Place) -> tuple[tuple[str, str], ...]:
    """Of which roles the weights have to be whole or cut for the boundary to be meant."""
    roles = tuple(role for role, kinds in PLACES.items() if kinds and role not in ("residual", "layer"))
    given = _object(item.get("weights", {}), at / "weights", roles)
    return tuple(sorted((role, _choice(how, WEIGHTS, at / "weights" / role)) for role, how in given.items()))


def _some(item: dict[str, Any], key: str, at: Place) -> list[Any]:
    """A list with something in it, or nothing where the key is not there."""
    if key not in item:
        return []
    found = _list(item[key], at / key)
    if not found:
        raise InputError("here belongs at least one", str(at / key))
    return found


def _consistent(b: Boundary, at: Place) -> None:
    states = b.require or b.at_most or b.at_least or b.via is not None or b.carry
    if not (states or b.count or b.trust):
        raise InputError(
            "a boundary demands something: require, at_most, at_least, via, carry, count, trust", str(at)
        )
    if b.role == "layer" and (states or b.trust):
        raise InputError("of a layer as a whole only `count` can be said", str(at))
    if b.carry and (b.role, b.operand) != ("residual", "output"):
        raise InputError("`carry` speaks of what layers hand on: residual output", str(at))
    if b.require and (b.at_most or b.at_least):
        raise InputError("`require` says all that at_most and at_least could", str(at))
    if b.at_most and b.at_least and CHAIN[b.at_most] > CHAIN[b.at_least]:
        raise InputError(f"nothing is at most {b.at_most} and at least {b.at_least}", str(at))
    if b.carry and not _fits(b, b.carry):
        raise InputError(f"nothing is carried {b.carry} and something else at the same place", str(at))


def _fits(b: Boundary, state: str) -> bool:
    """Whether a state is one that the boundary's other demands allow."""
    if b.require:
        return state in b.require
    above = b.at_most is None or CHAIN[state] >= CHAIN[b.at_most]
    return above and (b.at_least is None or CHAIN[state] <= CHAIN[b.at_least])


def _count(value: Any, at: Place) -> tuple[tuple[str, int, int], ...]:
    found = []
    for kind, number in _object(value, at, CONVERSIONS).items():
        low, high = (number, number) if not isinstance(number, list) else (*number, None, None)[:2]
        if (
            not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in (low, high))
            or low > high
            or (isinstance(number, list) and len(number) != 2)
        ):
            raise InputError(f"{kind} is a number or [least, most], not {number!r}", at.of_key(kind))
        found.append((kind, low, high))
    if not found:
        raise InputError("here belongs at least one", str(at))
    return tuple(found)


def _object(value: Any, at: Place, keys: Sequence[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"here belongs an object, not {_kind(value)}", str(at))
    for key in value:
        if key not in keys:
            near = difflib.get_close_matches(str(key), keys, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(keys)}"
            raise InputError(f"unknown key {key!r}; {hint}", at.of_key(key))
    return value


def _list(value: Any, at: Place) -> list[Any]:
    if not isinstance(value, list):
        raise InputError(f"here belongs a list, not {_kind(value)}", str(at))
    return value


def _kind(value: Any) -> str:
    """What a JSON value is."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    for kind, words in ((dict, "an object"), (list, "a list"), (str, "text")):
        if isinstance(value, kind):
            return words
    return "a number"


def _text(item: dict[str, Any], key: str, at: Place) -> str:
    value = item.get(key, "")
    if not isinstance(value, str):
        raise InputError(f"`{key}` is text, not {_kind(value)}", at.of_key(key))
    return value


def _choice(value: Any, among: Sequence[str], at: Place) -> str:
    if isinstance(value, str) and value in among:
        return value
    near = difflib.get_close_matches(value, among, 1) if isinstance(value, str) else []
    hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(among)} is meant"
    what = f"unknown {value!r}" if isinstance(value, str) else f"here belongs text, not {_kind(value)}"
    raise InputError(f"{what}; {hint}", str(at))


def _optional(item: dict[str, Any], key: str, among: Sequence[str], at: Place) -> str | None:
    return None if key not in item else _choice(item[key], among, at / key)
