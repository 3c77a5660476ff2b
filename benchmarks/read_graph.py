"""Time to read a graph, and the builder of large archives: a `.pt2` with its last layer repeated.

    python benchmarks/read_graph.py ARCHIVE.pt2 [--nodes 17000] [--write OUT.pt2]

prints the JSON's size, the number of nodes, and seconds of CPU for each stage, best of five.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from layoutcheck.readers import load
from layoutcheck.readers.files import parse_json
from layoutcheck.readers.pt2_graph import program_from_json

_LAYER = re.compile(r"(?<![A-Za-z])layers[._](\d+)(?!\d)")


def archive_json(path: str) -> tuple[str, dict[str, Any]]:
    """Name and content of an archive's graph."""
    with zipfile.ZipFile(path) as archive:
        name = next(x for x in archive.namelist() if x.endswith("models/model.json"))
        document: dict[str, Any] = json.loads(archive.read(name))
    return name, document


def _layer_of(node: dict[str, Any]) -> int | None:
    found = _LAYER.search(node["metadata"].get("nn_module_stack", ""))
    return int(found[1]) if found else None


def _names(value: Any, found: list[str]) -> list[str]:
    """Names that an argument or an output holds."""
    if isinstance(value, dict):
        for key, content in value.items():
            if key in ("name", "as_name") and isinstance(content, str):
                found.append(content)
            else:
                _names(content, found)
    elif isinstance(value, list):
        for item in value:
            _names(item, found)
    return found


def _rename(value: Any, new: Callable[[str], str]) -> Any:
    if isinstance(value, dict):
        return {
            k: new(v) if k in ("name", "as_name") and isinstance(v, str) else _rename(v, new)
            for k, v in value.items()
        }
    if isinstance(value, list):
        return [_rename(x, new) for x in value]
    return value


def repeat_layers(document: dict[str, Any], nodes: int) -> dict[str, Any]:
    """The archive's JSON with its last layer repeated until there are at least `nodes` calls.

    Each copy has weights and names of its own and reads what the copy before it made. Raises ValueError where
    the layers are not found in the module stacks.
    """
    graph = document["graph_module"]["graph"]
    specs = document["graph_module"]["signature"]["input_specs"]
    calls = graph["nodes"]
    layers = [_layer_of(x) for x in calls]
    last = max((x for x in layers if x is not None), default=0)
    if last < 1:
        raise ValueError("the archive has no two layers")
    inside = [i for i, layer in enumerate(layers) if layer == last]
    start, stop = inside[0], inside[-1] + 1
    made = [_names(x["outputs"], []) for x in calls]
    here = {name for names in made[start:stop] for name in names}
    before = {name for i, names in enumerate(made) if layers[i] == last - 1 for name in names}
    read = {name for x in calls[start:stop] for item in x["inputs"] for name in _names(item["arg"], [])}
    carried_in = sorted(read & before)
    later = {name for x in calls[stop:] for item in x["inputs"] for name in _names(item["arg"], [])}
    carried_out = sorted(later & here)
    if len(carried_in) != 1 or len(carried_out) != 1:
        raise ValueError(f"a layer hands on {carried_in} and {carried_out}, not one value")
    weights = {
        name: spec
        for spec in specs
        for name in _names(spec, [])
        if "user_input" not in spec and name in read and _LAYER.search(name)
    }
    body, out = calls[start:stop], carried_out[0]
    copies, previous, count = [], out, last
    while len(calls) + len(copies) < nodes:
        count += 1

        def new(name: str, count: int = count, previous: str = previous) -> str:
            if name in weights or name in here:
                return f"{name}__{count}"
            return previous if name == carried_in[0] else name

        for call in body:
            copy = dict(call, name=f"{call['name']}__{count}")
            copy["inputs"] = [dict(x, arg=_rename(x["arg"], new)) for x in call["inputs"]]
            copy["outputs"] = _rename(call["outputs"], new)
            copy["metadata"] = {
                k: _LAYER.sub(lambda m, n=count: m[0].replace(m[1], str(n)), v)
                for k, v in call["metadata"].items()
            }
            copies.append(copy)
        for table in ("tensor_values", "sym_int_values"):
            values = graph[table]
            values.update({new(x): values[x] for x in (*here, *weights) if x in values})
        for name, spec in weights.items():
            graph["inputs"].insert(0, {"as_tensor": {"name": new(name)}})
            text = _LAYER.sub(lambda m, n=count: m[0].replace(m[1], str(n)), json.dumps(spec))
            specs.insert(
                0,
                _rename(
                    json.loads(text.replace(f'"{name}"', '"?"')), lambda x, n=name: new(n) if x == "?" else x
                ),
            )
        previous = f"{out}__{count}"

    def final(name: str) -> str:
        return previous if name == out else name

    tail = [
        dict(x, inputs=[dict(y, arg=_rename(y["arg"], final)) for y in x["inputs"]]) for x in calls[stop:]
    ]
    graph["nodes"] = calls[:stop] + copies + tail
    graph["outputs"] = _rename(graph["outputs"], final)
    return document


def write_archive(document: dict[str, Any], path: str) -> int:
    """Write a `.pt2` of this JSON, without weights; returns the JSON's size in bytes."""
    data = json.dumps(document).encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{Path(path).stem}/models/model.json", data)
        archive.writestr(f"{Path(path).stem}/archive_format", "pt2")
    return len(data)


def _best(run: Callable[[], Any]) -> float:
    times = []
    for _ in range(5):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("archive")
    parser.add_argument("--nodes", type=int, default=17_000)
    parser.add_argument("--write", default=None)
    options = parser.parse_args()
    target = options.write or "/tmp/read_graph_large.pt2"
    _, document = archive_json(options.archive)
    size = write_archive(repeat_layers(document, options.nodes), target)
    name, _ = archive_json(target)

    def unzip() -> bytes:
        with zipfile.ZipFile(target) as archive:
            return archive.read(name)

    data = unzip()
    parsed = parse_json(data, target)
    graph = load(target)
    print(f"{size / 1e6:.1f} MB of JSON, {len(graph.nodes)} nodes, {len(graph.inputs)} inputs")
    print(f"unzip  {_best(unzip):.3f} s")
    print(f"parse  {_best(lambda: parse_json(data, target)):.3f} s")
    print(f"build  {_best(lambda: program_from_json(parsed, target)):.3f} s")
    print(f"load   {_best(lambda: load(target)):.3f} s in all")
    print(f"peak   {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB resident")


if __name__ == "__main__":
    main()
