"""Damaged and hostile files: every one is read or refused with an InputError that names the place."""

from __future__ import annotations

import gzip
import itertools
import os
import time
import zipfile
from pathlib import Path

import pytest
from fuzz_documents import archive, dump, json_document, pt2_document
from fuzz_inputs import HOSTILE, bombs, mutations

from layoutcheck.errors import InputError
from layoutcheck.json_form import dumps
from layoutcheck.readers import load
from layoutcheck.readers.files import check_ratio

SECONDS = 2.0


def outcome(path: Path) -> str:
    """`ok` or the message; anything but an InputError goes through."""
    start = time.process_time()
    try:
        dumps(load(path))
        result = "ok"
    except InputError as error:
        result = str(error)
    assert time.process_time() - start < SECONDS
    return result


def test_undamaged_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "g.json").write_bytes(dump(json_document()))
    (tmp_path / "g.pt2").write_bytes(archive(dump(pt2_document())))
    assert outcome(tmp_path / "g.json") == "ok"
    assert outcome(tmp_path / "g.pt2") == "ok"


@pytest.mark.parametrize("seed", range(4))
def test_mutations_are_read_or_refused(tmp_path: Path, seed: int) -> None:
    counts = {"ok": 0, "refused": 0}
    for _, name, data in itertools.islice(mutations(seed, with_bombs=False), 150):
        path = tmp_path / name
        path.write_bytes(data)
        result = outcome(path)
        counts["ok" if result == "ok" else "refused"] += 1
        assert result == "ok" or result.startswith(str(path)), result
    # Both happen: a reader that refuses everything, or nothing, would be no reader.
    assert counts["ok"] > 5 and counts["refused"] > 50


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:24])
def test_hostile_expressions_never_run(tmp_path: Path, text: str) -> None:
    document = json_document()
    document["nodes"][0]["meta"]["shape"][0] = text
    (tmp_path / "g.json").write_bytes(dump(document))
    archived = pt2_document()
    archived["graph_module"]["graph"]["tensor_values"]["x"]["sizes"][0] = {"as_expr": {"expr_str": text}}
    (tmp_path / "g.pt2").write_bytes(archive(dump(archived)))
    for name, place in (("g.json", "nodes[0].meta.shape[0]"), ("g.pt2", "tensor_values['x'].sizes[0]")):
        result = outcome(tmp_path / name)
        assert result == "ok" or place in result
    assert not os.path.exists("/tmp/owned")


def test_bombs_are_refused(tmp_path: Path) -> None:
    for name, data in bombs():
        path = tmp_path / name
        path.write_bytes(data)
        assert len(data) < 2_000_000
        result = outcome(path)
        assert result.startswith(str(path)), result
        assert name == "twice.json.gz" or "unpacks to more than" in result or "damaged archive" in result


def test_what_is_unpacked_is_bounded() -> None:
    check_ratio(64 << 20, 1, "here")
    check_ratio(1 << 30, 1 << 27, "here")
    with pytest.raises(InputError, match="like a bomb"):
        check_ratio((64 << 20) + 1, 1000, "here")
    with pytest.raises(InputError, match="more than 10 bytes"):
        check_ratio(11, 11, "here", limit=10)


def test_paths_that_hold_no_graph(tmp_path: Path) -> None:
    def refuse(path: Path | str, message: str) -> None:
        with pytest.raises(InputError, match=message) as caught:
            load(path)
        assert caught.value.where is not None and str(path)[:40] in caught.value.where

    refuse(tmp_path / "missing.json", "no such file")
    refuse(tmp_path, "folder")
    (tmp_path / "empty.json").touch()
    refuse(tmp_path / "empty.json", "empty")
    (tmp_path / "text.json").write_text("hello")
    refuse(tmp_path / "text.json", "neither a .pt2 archive nor")
    (tmp_path / "list.json").write_text("[]")
    refuse(tmp_path / "list.json", "neither")
    (tmp_path / "other.json").write_text('{"a": 1}')
    refuse(tmp_path / "other.json", "this is not a layoutcheck-graph/1 file: the format is 'None'")
    (tmp_path / "later.json").write_text('{"format": "layoutcheck-graph/9"}')
    refuse(tmp_path / "later.json", "this is a layoutcheck-graph/9 file, not a layoutcheck-graph/1 file")
    refuse(tmp_path / ("x" * 5000), "cannot be read|no such file")
    refuse("a\0b", "no path")
    os.mkfifo(tmp_path / "pipe")
    refuse(tmp_path / "pipe", "no regular file")
    (tmp_path / "cut.json.gz").write_bytes(gzip.compress(dump(json_document()))[:-9])
    refuse(tmp_path / "cut.json.gz", "damaged gzip")
    if os.geteuid() != 0:
        (tmp_path / "closed.json").write_text("{}")
        (tmp_path / "closed.json").chmod(0)
        refuse(tmp_path / "closed.json", "Permission denied")


def test_archives_without_one_graph(tmp_path: Path) -> None:
    path = tmp_path / "g.pt2"
    path.write_bytes(archive(b"{}", name="m/readme.txt"))
    with pytest.raises(InputError, match="no torch"):
        load(path)
    with zipfile.ZipFile(path, "w") as out:
        out.writestr("m/models/a.json", "{}")
        out.writestr("m/models/b.json", "{}")
    with pytest.raises(InputError, match=r"several graphs: m/models/a\.json, m/models/b\.json"):
        load(path)
    with zipfile.ZipFile(path, "w"):
        pass
    with pytest.raises(InputError, match="no torch"):
        load(path)


@pytest.mark.parametrize(
    ("place", "value", "where", "message"),
    [
        (("nodes", 4, "args", 0), {"node": "gone"}, "node 'mm'", "'gone', which is no node"),
        (("nodes", 4, "args", 0), {"node": "item"}, "node 'mm'", "comes later"),
        (("nodes", 4, "name"), "pad", "node 'pad'", "stands twice"),
        (("nodes", 4, "name"), 3, "nodes[4].name", "no text"),
        (("nodes", 4, "op"), "call", "nodes[4].op", "none of"),
        (("nodes", 4, "args"), {}, "nodes[4].args", "a list"),
        (("nodes", 4, "args", 0), {"a": 1}, "nodes[4].args", "an argument is"),
        (("nodes", 4, "meta", "shape", 1), 2.5, "nodes[4].meta.shape[1]", "a number or a text"),
        (("nodes", 4, "meta", "shape", 1), True, "nodes[4].meta.shape[1]", "a number or a text"),
        (("nodes", 4, "meta", "shape", 1), 10**19, "nodes[4].meta.shape[1]", "absurdly large"),
        (("nodes", 4, "meta", "dtype"), None, "nodes[4].meta.dtype", "no text"),
        (("nodes", 4, "location", "line"), "x", "nodes[4].location.line", "no number"),
        (("inputs", "w", "kind"), "weight", "inputs['w'].kind", "none of"),
        (("ranges", "T"), [1], "ranges['T']", "least"),
        (("rank",), -1, "rank", "rank"),
        (("guards", 0), 1, "guards[0]", "a text"),
        (("subgraphs", "body", "nodes", 0, "op"), 1, "subgraphs['body'].nodes[0].op", "none of"),
    ],
)
def test_messages_name_the_place(
    tmp_path: Path, place: tuple[str | int, ...], value: object, where: str, message: str
) -> None:
    document = json_document()
    holder = document
    for key in place[:-1]:
        holder = holder[key]  # type: ignore[index]
    holder[place[-1]] = value  # type: ignore[index]
    path = tmp_path / "g.json"
    path.write_bytes(dump(document))
    result = outcome(path)
    assert result.startswith(f"{path}: {where}: ") and message in result, result


@pytest.mark.parametrize(
    ("place", "value", "where"),
    [
        (("nodes", 3, "inputs", 0, "arg"), {"as_what": 1}, "graph.nodes[3].inputs[0].arg"),
        (("nodes", 3, "inputs", 0, "arg"), {"as_tensor": 1}, "graph.nodes[3].inputs[0].arg.as_tensor"),
        (("nodes", 3, "inputs", 0, "arg"), {"as_tensor": {"name": "gone"}}, "node 'linear'"),
        (("nodes", 3, "target"), None, "graph.nodes[3].target"),
        (("nodes", 3, "outputs"), None, "graph.nodes[3].outputs"),
        (("nodes", 3, "metadata", "stack_trace"), 1, "graph.nodes[3].metadata.stack_trace"),
        (("tensor_values", "x", "dtype"), "float", "graph.tensor_values['x'].dtype"),
        (("tensor_values", "x", "sizes", 0), 4, "graph.tensor_values['x'].sizes[0]"),
        (("sym_int_values", "n"), {"as_int": "x"}, "graph.sym_int_values['n'].as_int"),
        (("inputs",), {}, "graph.inputs"),
    ],
)
def test_messages_name_the_place_in_an_archive(
    tmp_path: Path, place: tuple[str | int, ...], value: object, where: str
) -> None:
    document = pt2_document()
    holder = document["graph_module"]["graph"]
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    path = tmp_path / "g.pt2"
    path.write_bytes(archive(dump(document)))
    result = outcome(path)
    assert result.startswith(f"{path}: ") and where in result, result
