"""Damaged documents other than graphs, each with the function that reads its kind: configs, contracts, plans, hardware, engine
profiles, descriptions of quantised tensors, tables, indices and headers of safetensors, rules, kernels, fusion classes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fuzz_inputs import _places, damage, edit

from layoutcheck.contracts import load_contract
from layoutcheck.cost.hardware import read_hardware
from layoutcheck.cost.kernel_map import load_kernel_map
from layoutcheck.cost.tables import load_tables
from layoutcheck.documents import read_document
from layoutcheck.memory.engines import load_engine
from layoutcheck.memory.quantisation import load_quantisation
from layoutcheck.memory.safetensors import read_header, read_index
from layoutcheck.models import load_model
from layoutcheck.regions.fusion_rules import FusionBook
from layoutcheck.rules.rulebook import RuleBook

RULES = Path(__file__).resolve().parent.parent / "rules"
TENSOR = {"dtype": "BF16", "shape": [4, 8], "data_offsets": [0, 64]}
HEADER = {
    "__metadata__": {"format": "pt"},
    "model.w": TENSOR,
    "model.v": {**TENSOR, "data_offsets": [64, 128]},
}
EXAMPLE = {
    "format": "layoutcheck-counterexample/1",
    **{"world": 4, "tokens": 5, "seed": 0, "node": "add", "detail": "rank 0"},
}
TABLES = {
    "format": "layoutcheck-tables/1",
    "tables": [
        {
            **{"file": "gemm.csv", "kernel": "gemm", "time": "us", "unit": "us"},
            **{"exact": {"k": "k"}, "along": {"m": "m"}, "where": {"dtype": "bf16"}},
        }
    ],
}


def _counter_example(path: Path) -> Any:
    from layoutcheck.ranks.counterexample import CounterExample

    return CounterExample.from_dict(
        read_document(path, "a counter-example", form="layoutcheck-counterexample/1")
    )


def _plan(path: Path) -> Any:
    from layoutcheck.infer.solver.weight_plan import read_plan

    return read_plan(path)


def _shipped(folder: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((RULES / folder).glob("*.*")) if path.suffix != ".schema"]


def _header(document: Any) -> bytes:
    text = json.dumps(document).encode()
    return len(text).to_bytes(8, "little") + text + bytes(128)


READERS: dict[str, tuple[str, Callable[[Path], Any], list[bytes]]] = {
    "config": (
        "config.json",
        load_model,
        [p.read_bytes() for p in sorted((RULES / "models").glob("[!_]*.json"))],
    ),
    "contract": ("contract.json", load_contract, _shipped("contracts")),
    "hardware": ("own.json", read_hardware, _shipped("hardware")),
    "engine": ("engine.json", lambda path: load_engine.__wrapped__(str(path)), _shipped("engines")),
    "plan": ("plan.json", _plan, [b'{"group": "tp", "weights": {"*.q_proj.weight": "column", "lm_head": "[4/4@tp, *]"}}']),
    "quantised": (
        "description.json",
        lambda path: load_quantisation(str(path)),
        [b'{"model.w": "W8A8", "model.v": "FLOAT", "model.x": "W4A8_DYNAMIC", "version": "1.0", "group_size": 256}'],
    ),
    "tables": ("tables.json", load_tables, [json.dumps(TABLES).encode()]),
    "index": ("model.safetensors.index.json", read_index, [b'{"metadata": {}, "weight_map": {"a.w": "m-1.safetensors"}}']),
    "header": ("model.safetensors", read_header, [_header(HEADER)]),
    "example": ("found.json", _counter_example, [json.dumps(EXAMPLE).encode()]),
    "rules": ("own.rules", lambda path: RuleBook.load([path.parent], builtin=False), _shipped("ops")),
    "kernels": ("own.kernels", lambda path: load_kernel_map([path.parent]), _shipped("kernels")),
    "fusion": ("own.fusion", lambda path: FusionBook.load([path.parent]), _shipped("fusion")),
}  # fmt: skip
"""Per kind the name of its file, what reads it, and files that are right."""


def damaged(seed: int) -> Iterator[tuple[str, str, Callable[[Path], Any], bytes]]:
    """Endlessly: a kind, the name of a file, what reads it, and its bytes."""
    rng = random.Random(seed)
    kinds = list(READERS)
    documents: dict[tuple[str, int], tuple[Any, list[Any]]] = {}
    while True:
        kind = rng.choice(kinds)
        name, read, files = READERS[kind]
        at = rng.randrange(len(files))
        data = files[at]
        structured = data.lstrip()[:1] == b"{" or kind == "header"
        if structured and rng.random() < 0.7:
            if (kind, at) not in documents:
                document = HEADER if kind == "header" else json.loads(data)
                documents[kind, at] = (document, list(_places(document)))
            document, places = documents[kind, at]
            for _ in range(rng.choice([1, 1, 1, 2])):
                changed = edit(document, places, rng)
            data = (
                _header(changed) if kind == "header" else json.dumps(changed).encode("utf-8", "surrogatepass")
            )
        else:
            data = damage(data, rng)
        yield kind, name, read, data
