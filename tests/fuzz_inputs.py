"""Damaged and hostile copies of small graphs: what readers must survive.

`mutations(seed)` yields `(kind, file name, bytes)` for ever, the same ones for the same seed.
"""

from __future__ import annotations

import copy
import functools
import gzip
import io
import random
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

from fuzz_documents import archive, dump, json_document, pt2_document

HOSTILE = [
    "__import__('os').system('touch /tmp/owned')",
    'exec("import os")',
    "(lambda: 0)()",
    "s77.__class__.__mro__",
    "Symbol('s77').__init__",
    "eval('1')",
    "open('/etc/passwd').read()",
    "Function('f')(Symbol('s77'))",
    "(" * 5000,
    "(" * 9000 + "1" + ")" * 9000,
    "-" * 19000 + "1",
    "Max(" * 3000 + "1" + ")" * 3000,
    "2**" * 3000 + "2",
    "9" * 19_999,
    "s1**999999999",
    "*".join(f"(a{i}+b{i}+c{i})" for i in range(400)),
    "(a+b+c+d)**8*(e+f+g+h)**8",
    "+".join(f"(a{i}+b{i})**8" for i in range(900)),
    "Min(" + ",".join(f"a{i}" for i in range(3000)) + ")",
    "Max(" + ",".join(f"a{i}-b{i}" for i in range(64)) + ")",
    "+".join(f"a{i}*b{i}" for i in range(2000)),
    "//".join(f"(a{i}+{i})" for i in range(1, 900)),
    "(" + "+".join(f"a{i}" for i in range(2000)) + ")//(" + "+".join(f"b{i}" for i in range(900)) + ")",
    "%".join("s77+1" for _ in range(900)),
    "s77//0",
    "s77%(s77-s77)",
    "0/0",
    "1/3",
    "x" * 50_000,
    "s" * 19_000,
    "\x00",
    "é",
    "",
    " ",
    "1 2",
    "Integer(Integer(Integer(1)))",
    "Symbol('a b')",
    "Symbol('" + "a" * 10_000 + "')",
]
"""Expression strings that must neither run nor hang."""

VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63 - 1,
    2**63,
    -(2**63),
    10**30,
    0.5,
    -1e308,
    "",
    "x",
    "x" * 5000,
    "output",
    "\ud800".encode("utf-8", "replace").decode(),
    [],
    [[]],
    [None],
    {},
    {"": None},
    {"name": "x"},
    {"node": "x"},
    {"node": 3},
    {"node": []},
    {"repr": None},
    {"size": []},
    {"dict": [1]},
    {"dict": [["k", {"node": "missing"}]]},
    {"as_int": "1"},
    {"as_int": True},
    {"as_tensor": None},
    {"as_tensor": {"name": []}},
    {"as_tensors": [{"name": "x"}, 3]},
    {"as_graph": {"name": "g", "graph": {}}},
    {"as_graph": {"name": "g"}},
    {"as_expr": {"expr_str": None}},
    {"as_sym_ints": [{"as_name": "x"}, {"as_name": 7}]},
    {"as_what": 1},
    {"shape": 3, "dtype": 4},
    {"shape": ["T", {}], "dtype": "float32"},
    {"shape": [1] * 1000, "dtype": "float32"},
    {"symint": [1]},
    *({"as_expr": {"expr_str": text}} for text in HOSTILE[:4]),
    *HOSTILE[:4],
]
"""Values that stand where another type belongs."""


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items: Any = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, item in items:
        yield from _places(item, (*path, key))


def _replace(document: Any, path: tuple[Any, ...], make: Callable[[Any, Any], None]) -> Any:
    document = copy.deepcopy(document)
    holder = document
    for key in path[:-1]:
        holder = holder[key]
    make(holder, path[-1])
    return document


def edit(document: Any, places: list[tuple[Any, ...]], rng: random.Random) -> Any:
    """A copy of the document with one place changed, dropped, doubled or exchanged."""
    path = rng.choice(places[1:])
    action = rng.randrange(8)

    def make(holder: Any, key: Any) -> None:
        if action == 0:
            del holder[key]
        elif action == 1 and isinstance(holder, list):
            holder.insert(rng.randrange(len(holder) + 1), copy.deepcopy(holder[key]))
        elif action == 2 and isinstance(holder, list):
            other = rng.randrange(len(holder))
            holder[key], holder[other] = holder[other], holder[key]
        elif action == 3:
            holder[key] = [holder[key]]
        elif action == 4 and isinstance(holder, dict):
            holder[rng.choice(["x", "", "name", "as_tensor", "as_int"])] = holder.pop(key)
        elif action == 5 and isinstance(holder[key], str):
            holder[key] = rng.choice(HOSTILE)
        elif action == 6:
            source: Any = document
            for step in rng.choice(places):
                source = source[step]
            holder[key] = copy.deepcopy(source)
        else:
            holder[key] = rng.choice(VALUES)

    return _replace(document, path, make)


def damage(data: bytes, rng: random.Random) -> bytes:
    """The bytes cut, flipped, repeated or with rubbish in them."""
    action = rng.randrange(5)
    at = rng.randrange(len(data))
    if action == 0:
        return data[:at]
    if action == 1:
        return data[at:]
    out = bytearray(data)
    if action == 2:
        for _ in range(rng.choice([1, 1, 2, 8, 64])):
            out[rng.randrange(len(out))] = rng.randrange(256)
    elif action == 3:
        out[at:at] = rng.choice([b"\0", b"[" * 1000, b"\xff\xfe", b'"', b"}", b"1e999", rng.randbytes(30)])
    else:
        end = rng.randrange(at, len(data))
        out[at:at] = data[at:end]
    return bytes(out)


def _nested(rng: random.Random) -> tuple[str, bytes]:
    depth = rng.choice([60, 500, 2000, 100_000])
    which = rng.randrange(4)
    if which == 0:
        return "deep.json", b"[" * depth + b"]" * depth
    if which == 1:
        return "deep.json", b'{"format":' * depth + b"1" + b"}" * depth
    text = dump(json_document())
    if which == 2:
        return "deep.json", text.replace(
            b'{"node": "mm"}, 4', b"[" * depth + b'{"node": "mm"}' + b"]" * depth + b", 4"
        )
    open_, close = b'{"as_string_to_argument": {"k": ', b"}}"
    inner = open_ * depth + b'{"as_int": 1}' + close * depth
    return "deep.pt2", archive(dump(pt2_document()).replace(b'{"as_string": "sum"}', inner))


def _blanks() -> Iterator[bytes]:
    """300 MB of JSON that says next to nothing, in pieces."""
    yield b'{"format": "layoutcheck-graph/1", "nodes": ['
    for _ in range(300):
        yield b" " * (1 << 20)
    yield b"]}"


@functools.cache
def bombs() -> tuple[tuple[str, bytes], ...]:
    """Files of some hundred kilobytes that unpack to hundreds of megabytes."""
    packed, zipped = io.BytesIO(), io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=6) as stream:
        for piece in _blanks():
            stream.write(piece)
    with (
        zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as out,
        out.open("m/models/model.json", "w") as member,
    ):
        for piece in _blanks():
            member.write(piece)
    return (
        ("bomb.json.gz", packed.getvalue()),
        ("twice.json.gz", gzip.compress(packed.getvalue())),
        ("bomb.pt2", zipped.getvalue()),
        ("quoted.pt2", _lying_archive(zipped.getvalue())),
    )


def _lying_archive(data: bytes) -> bytes:
    """The archive with the unpacked size of its graph understated in the directory."""
    with zipfile.ZipFile(io.BytesIO(data)) as read:
        size = read.getinfo("m/models/model.json").file_size
    return data.replace(size.to_bytes(4, "little"), (1000).to_bytes(4, "little"))


def _wide(rng: random.Random) -> tuple[str, bytes]:
    """Cycles, doubled names, huge numbers of dimensions, long names."""
    document = json_document()
    nodes = document["nodes"]
    which = rng.randrange(10)
    if which == 0:
        nodes[4]["args"] = [{"node": "item"}]
    elif which == 1:
        nodes.append(copy.deepcopy(rng.choice(nodes)))
    elif which == 2:
        nodes[0]["meta"]["shape"] = [1] * rng.choice([257, 100_000])
    elif which == 3:
        nodes[0]["name"] = "n" * rng.choice([4096, 4097, 1_000_000])
    elif which == 4:
        rng.shuffle(nodes)
    else:
        nodes[0]["meta"]["shape"][0] = rng.choice(HOSTILE)
    return "wide.json", dump(document)


def mutations(seed: int, with_bombs: bool = True) -> Iterator[tuple[str, str, bytes]]:
    """Damaged files without end, as `(kind, file name, bytes)`."""
    rng = random.Random(seed)
    documents = {"json": json_document(), "pt2": pt2_document()}
    places = {form: list(_places(document)) for form, document in documents.items()}
    whole = {
        "g.json": dump(documents["json"]),
        "g.json.gz": gzip.compress(dump(documents["json"]), mtime=0),
        "g.pt2": archive(dump(documents["pt2"])),
    }
    while True:
        kind = rng.random()
        if kind < 0.62:
            form = rng.choice(["json", "pt2"])
            document = documents[form]
            for _ in range(rng.choice([1, 1, 1, 2, 4])):
                document = edit(
                    document, places[form] if document is documents[form] else list(_places(document)), rng
                )
            data = dump(document)
            yield ("edited", "g.json", data) if form == "json" else ("edited", "g.pt2", archive(data))
        elif kind < 0.80:
            name = rng.choice(list(whole))
            yield "damaged", name, damage(whole[name], rng)
        elif kind < 0.88:
            # Damage inside the packing, so that the checksums hold.
            form = rng.choice(["json", "pt2"])
            data = damage(dump(documents[form]), rng)
            yield (
                ("inside", "g.pt2", archive(data))
                if form == "pt2"
                else ("inside", "g.json.gz", gzip.compress(data, 1))
            )
        elif kind < 0.91:
            yield "nested", *_nested(rng)
        elif kind < 0.999 or not with_bombs:
            yield "wide", *_wide(rng)
        else:
            yield "bomb", *rng.choice(bombs())
