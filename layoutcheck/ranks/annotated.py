"""Annotated graphs on simulated ranks: one annotated graph a rank, its inputs cut as the annotation says, run in lockstep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor

from layoutcheck.contracts import load_contract
from layoutcheck.contracts.model import Contract
from layoutcheck.errors import InputError
from layoutcheck.graph import Graph, SymMeta, TensorMeta
from layoutcheck.inline import inline_subgraphs
from layoutcheck.placement.annotated import AnnotatedGraph, Shard, annotate
from layoutcheck.ranks.interpreter import Run, run
from layoutcheck.symbols import Expr, symbol_name


@attrs.frozen
class AnnotatedRun:
    """What the ranks of an annotated graph compute: `annotated`, `inputs` and `runs` by rank."""

    annotated: tuple[AnnotatedGraph, ...]
    inputs: tuple[dict[str, Any], ...]
    runs: tuple[Run, ...]
    symbols: dict[str, int]


def run_annotated(
    graph: Graph,
    contract: str | Path | Contract,
    ranks: int,
    inputs: Mapping[str, Any],
    **options: Any,
) -> AnnotatedRun:
    """Annotate a graph of one device for each rank of the contract's group, and run the ranks together.

    Args:
        graph: the program of one device.
        contract: a contract, the name of a shipped one, or a file.
        ranks: size of the contract's group, which is all ranks.
        inputs: whole values of placeholders and constants by node name; tensors of floats are computed in float64.
        options: more of `annotate` (`plan`, `tokens`, ..).

    Raises:
        InputError: as `annotate`, or the inputs do not fit the graph.
        RankError: as `interpreter.run`.
    """
    agreed = contract if isinstance(contract, Contract) else load_contract(contract)
    given = {**options.pop("groups", {}), agreed.group: ranks}
    annotated = tuple(annotate(graph, agreed, groups=given, rank=r, **options) for r in range(ranks))
    symbols = symbols_of(annotated[0].graph, inputs)
    mine = tuple(sharded(inputs, a.shards, r) for r, a in enumerate(annotated))
    runs = run([a.graph for a in annotated], mine, lambda _, __: range(ranks), symbols=symbols)
    return AnnotatedRun(annotated, mine, tuple(runs), symbols)


def run_whole(graph: Graph, inputs: Mapping[str, Any]) -> Run:
    """Run the graph on one device, which is a group of its own. Raises as `run_annotated`."""
    graph = inline_subgraphs(graph)[0]
    return run([graph], [in_float64(inputs)], lambda _, __: [0], symbols=symbols_of(graph, inputs))[0]


def in_float64(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The same values with floats as float64, in which ranks compute."""
    return {
        k: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in inputs.items()
    }


def sharded(inputs: Mapping[str, Any], shards: Mapping[str, Shard], rank: int) -> dict[str, Any]:
    """A rank's inputs, in float64: what `shards` names is cut, the rest is whole."""
    return {k: share_of(v, shards[k], rank) if k in shards else v for k, v in in_float64(inputs).items()}


def share_of(value: Tensor, shard: Shard, rank: int) -> Tensor:
    """A rank's part of a whole input.

    Raises:
        InputError: the axis does not divide.
    """
    if shard.padding:
        shape = list(value.shape)
        shape[shard.axis] = shard.padding
        value = torch.cat([value, value.new_zeros(shape)], shard.axis)
    ways, n = int(shard.ways), value.shape[shard.axis]
    sizes = list(shard.pieces) or [n]
    if sum(sizes) != n or any(size % ways for size in sizes):
        raise InputError(
            f"{n} elements do not divide into {ways} shares of pieces of {', '.join(map(str, sizes))}"
        )
    pieces = value.split(sizes, shard.axis)
    return torch.cat(
        [piece.chunk(ways, shard.axis)[rank // int(shard.copies)] for piece in pieces], shard.axis
    )


def symbols_of(graph: Graph, inputs: Mapping[str, Any]) -> dict[str, int]:
    """Numbers of symbolic sizes, from the shapes of inputs.

    Raises:
        InputError: an input is missing, or two inputs disagree on a size.
    """
    found: dict[str, int] = {}
    for node in graph.nodes:
        if node.op not in ("placeholder", "get_attr"):
            continue
        if node.name not in inputs:
            raise InputError("the input has no value", node.name)
        value = inputs[node.name]
        sizes: list[tuple[Any, int]] = []
        if isinstance(node.meta, TensorMeta) and isinstance(value, Tensor):
            sizes = list(zip(node.meta.shape, value.shape))
        elif isinstance(node.meta, SymMeta) and isinstance(value, int):
            sizes = [(node.meta.value, value)]
        for size, number in sizes:
            name = symbol_name(size) if isinstance(size, Expr) else None
            if name is not None and found.setdefault(name, number) != number:
                raise InputError(f"{name} is {found[name]} in one input and {number} in another", node.name)
    return found


def exported_inputs(program: Any, graph: Graph, given: Sequence[Any]) -> dict[str, Any]:
    """Values of a graph's inputs: parameters, buffers and constants of the exported program, and the user's.

    Args:
        program: the `torch.export.ExportedProgram` from which the graph was read.
        given: the user's inputs in order; those that are no tensors may be left out at the end.
    """
    held = {**program.constants, **program.state_dict}
    users = iter(given)
    out: dict[str, Any] = {}
    for node in inline_subgraphs(graph)[0].nodes:
        if node.op not in ("placeholder", "get_attr"):
            continue
        spec = graph.inputs.get(node.name)
        if spec is not None and spec.fqn in held:
            value = held[spec.fqn]
            out[node.name] = value.detach() if isinstance(value, Tensor) else value
        else:
            out[node.name] = next(users, None)
    return out
