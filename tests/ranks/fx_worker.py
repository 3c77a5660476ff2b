"""A process of a torch.distributed group that runs a rank's annotated graph as a torch.fx module."""

from __future__ import annotations

import importlib
from pathlib import Path


def run_rank(rank: int, folder: str, world: int, registers: str) -> None:
    """Run `<rank>.json` on `<rank>.in`, and write its outputs to `<rank>.out`.

    Args:
        registers: a module that registers ops, or nothing.
    """
    import torch
    import torch.distributed as dist

    from layoutcheck import load
    from layoutcheck.placement.to_fx import to_fx

    torch.set_num_threads(1)
    if registers:
        importlib.import_module(registers)
    here = Path(folder)
    dist.init_process_group("gloo", init_method=f"file://{here / 'meet'}", rank=rank, world_size=world)
    try:
        module = to_fx(load(here / f"{rank}.json"), {"tp": dist.group.WORLD.group_name})
        given = torch.load(here / f"{rank}.in")
        with torch.no_grad():
            out = module(*(given[n.name] for n in module.graph.nodes if n.op == "placeholder"))
        torch.save(out, here / f"{rank}.out")
    finally:
        dist.destroy_process_group()
