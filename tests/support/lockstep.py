"""Runs the graphs of all ranks side by side on real values, to tell whether two programs compute the same.

Only for built graphs. Values are float64; a weight that one rank holds a shard of differs from rank to rank.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

from .builder import Json

Tensor = Any  # torch.Tensor
DTYPES = {"bfloat16": torch.float64, "int64": torch.int64, "bool": torch.bool}
Shared = Callable[[list[int]], bool]


def _value(arg: Any, env: dict[str, Any]) -> Any:
    if isinstance(arg, dict):
        return env[arg["node"]] if "node" in arg else DTYPES[arg["dtype"]]
    return [_value(item, env) for item in arg] if isinstance(arg, list) else arg


def _placeholder(node: Json, rank: int, shared: Shared) -> Tensor:
    shape = node["meta"]["shape"]
    same = len(shape) == 1 or shared(shape)
    seed = random.Random(f"{node['name']} {0 if same else rank}").randrange(2**31)
    generator = torch.Generator().manual_seed(seed)
    if node["meta"]["dtype"] == "int64":
        return torch.randint(0, 256, shape, generator=generator)
    return torch.randn(shape, generator=generator, dtype=torch.float64) / shape[-1] ** 0.5


def _collective(op: str, x: list[Tensor], args: list[Any], me: int) -> Tensor:
    """One rank's result of a collective, from the operands of its group."""
    if op == "all_reduce":
        return torch.stack(x).sum(0)
    if op.startswith("all_gather"):
        return torch.cat(x, args[1] if op == "all_gather" else 0)
    if op.startswith("reduce_scatter"):
        return torch.stack(x).sum(0).chunk(len(x), args[1] if op == "reduce_scatter" else 0)[me]
    return torch.cat([share.chunk(len(x), 0)[me] for share in x], 0)


def _by_expert(ids: Tensor) -> Tensor:
    return ids.flatten().argsort(stable=True)


def _call(target: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """A call that concerns one rank only."""
    x = args[0]
    if target in ("_c10d_functional.wait_tensor.default", "aten.alias.default"):
        return x
    if target == "operator.getitem":
        return x[args[1]]
    if target == "tensor_cast.rms_norm.default":
        return torch.rms_norm(x, [x.shape[-1]], args[1], args[2])
    if target == "tensor_cast.silu.default":
        return torch.nn.functional.silu(x)
    if target == "tensor_cast.moe_gating_top_k_softmax.default":
        return tuple(x.softmax(-1).topk(args[1], -1))
    if target == "tensor_cast.init_routing_v2.default":
        return x[_by_expert(args[1]) // args[1].shape[1]]
    if target == "tensor_cast.unpermute_tokens.default":
        rows = torch.empty_like(x)
        rows[_by_expert(args[1])] = x
        return rows.view(*args[1].shape, x.shape[-1])
    namespace, op, overload = target.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), op), overload)(*args, **kwargs)


def run(graphs: list[Json], shared: Shared) -> list[list[Tensor]]:
    """The outputs of each rank; graph r is rank r's. Raises what torch raises where shapes do not fit."""
    envs: list[dict[str, Any]] = [{} for _ in graphs]
    for nodes in zip(*(graph["nodes"] for graph in graphs)):
        target, name = nodes[0]["target"], nodes[0]["name"]
        if nodes[0]["op"] == "placeholder":
            for rank, node in enumerate(nodes):
                envs[rank][name] = _placeholder(node, rank, shared)
            continue
        args = [_value(node["args"], env) for node, env in zip(nodes, envs)]
        if nodes[0]["op"] == "output":
            return [values[0] for values in args]
        op = target.split(".")[1]
        results = []
        for rank, node in enumerate(nodes):
            if target.startswith(("tensor_cast.", "_c10d")) and op.startswith(("all_", "reduce_")):
                group = args[rank][-1]
                group = group if isinstance(group, list) else graphs[rank]["config"]["groups"][group]
                operands = [args[other][0] for other in group]
                results.append(_collective(op, operands, args[rank], group.index(rank)))
            else:
                kwargs = {k: _value(v, envs[rank]) for k, v in node.get("kwargs", {}).items()}
                results.append(_call(target, args[rank], kwargs))
        for env, result in zip(envs, results):
            env[name] = result
    raise ValueError("the graph has no output")


def same(a: list[list[Tensor]], b: list[list[Tensor]]) -> bool:
    """Whether all outputs on all ranks are equal up to rounding."""
    return all(x.shape == y.shape and torch.allclose(x, y) for xs, ys in zip(a, b) for x, y in zip(xs, ys))
