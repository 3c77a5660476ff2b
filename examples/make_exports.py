"""Make the exports in ``examples/exports``: ``python examples/make_exports.py [NAME...]``.

Needs ``pip install 'layoutcheck[examples]'`` (torch and transformers). Each export is what torch.export
writes, less what a checker has no use for: weights, sample inputs, and the folders of the machine.
"""

from __future__ import annotations

import json
import os
import re
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from parallel_layers import GROUP, HIDDEN, WORLD, LayerPair
from torch.export import Dim, ExportedProgram

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "examples" / "exports"


def glm5() -> ExportedProgram:
    """Two layers (one dense, one with experts) of transformers' GLM-5 in its true sizes, one device."""
    from transformers import GlmMoeDsaConfig, GlmMoeDsaForCausalLM

    config = GlmMoeDsaConfig(num_hidden_layers=2, mlp_layer_types=["dense", "sparse"], use_cache=False)
    config._attn_implementation = "sdpa"
    with torch.device("meta"):
        model = GlmMoeDsaForCausalLM(config).to(torch.bfloat16).eval()
        ids = torch.zeros(1, 32, dtype=torch.int64)
    shapes = {"input_ids": {1: Dim.DYNAMIC}, "use_cache": None}
    inputs = {"input_ids": ids, "use_cache": False}
    return torch.export.export(model, (), inputs, dynamic_shapes=shapes, strict=False)


def parallel(rank: int, split_shared: bool) -> ExportedProgram:
    """The layer pair of :mod:`parallel_layers` as ``rank`` of four sees it, its tokens dynamic."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if not dist.is_initialized():
        # Nothing is sent: the group only gives the collectives a name and a size to be traced with.
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=WORLD)
        torch._C._distributed_c10d._register_process_group(GROUP, dist.group.WORLD)
    model = LayerPair(rank, split_shared).eval()
    shapes = {"hidden_states": {0: Dim.DYNAMIC}}
    return torch.export.export(model, (torch.randn(18, HIDDEN),), dynamic_shapes=shapes, strict=False)


EXPORTS: dict[str, Callable[[], ExportedProgram]] = {
    "glm5_two_layers": glm5,
    "shared_expert_right": lambda: parallel(0, split_shared=False),
    "shared_expert_right_rank1": lambda: parallel(1, split_shared=False),
    "shared_expert_fault": lambda: parallel(0, split_shared=True),
}


def without_machine(value: Any) -> Any:
    """Return JSON data in which paths start at the repository or at a package, not at the machine's root."""
    if isinstance(value, dict):
        return {without_machine(key): without_machine(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_machine(item) for item in value]
    if isinstance(value, str):
        for folder in (sysconfig.get_path("purelib"), sysconfig.get_path("stdlib"), str(ROOT)):
            value = value.replace(folder + os.sep, "")
        return value
    return value


def strip(source: Path, target: Path) -> None:
    """Write the archive ``source`` to ``target`` without its data and with its paths made relative.

    Raises:
        ValueError: an absolute path is left in it.
    """
    kind = zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", kind, compresslevel=9) as new:
        for name in old.namelist():
            inner = name.split("/", 1)[1]
            if inner.startswith("data/") or inner == ".data/serialization_id":
                continue
            payload = old.read(name)
            if name.endswith(".json"):
                data = without_machine(json.loads(payload))
                text = json.dumps(data, separators=(",", ":"))
                left = re.search(r'File \\"/[^"]*', text)
                if left:
                    raise ValueError(f"{target.name} still names {left.group()}")
                payload = text.encode()
            # A fixed date, so that a file changes only with what is in it.
            new.writestr(zipfile.ZipInfo(f"{target.stem}/{inner}", (2025, 1, 1, 0, 0, 0)), payload, kind)


def main(names: list[str]) -> None:
    """Make the exports with these names, or all of them."""
    TARGET.mkdir(exist_ok=True)
    for name in names or list(EXPORTS):
        with torch.no_grad():  # as in serving: no gradient switches in the graph
            program = EXPORTS[name]()
        with tempfile.TemporaryDirectory() as folder:
            raw = Path(folder) / f"{name}.pt2"
            torch.export.save(program, raw)
            strip(raw, TARGET / f"{name}.pt2")
        print(f"{name}.pt2  {(TARGET / f'{name}.pt2').stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
