"""``layoutcheck show --roles``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import click

from layoutcheck.cli.check import engine_options, warn_unused
from layoutcheck.cli.options import wants_color
from layoutcheck.infer.solver.analysis import Analysis, analyse
from layoutcheck.layouts import Layout, render
from layoutcheck.reports.wording import printable
from layoutcheck.roles import Block, Layer, Roles, find_roles

FORMAT = "layoutcheck-roles/1"


def described(analysis: Analysis, roles: Roles) -> dict[str, Any]:
    """The structure as plain data: layers with their blocks, and every node that has a role."""
    p = analysis.program
    return {
        "sparse_attention": roles.is_sparse(),
        "layers": [_layer(analysis, layer) for layer in roles.layers],
        "nodes": [
            {
                "name": p.nodes[k].name,
                "role": roles.calls[k],
                "layer": found.index if (found := roles.layer_of(k)) is not None else None,
                "target": p.nodes[k].target,
                "layout": _layout(analysis, k),
            }
            for k in sorted(roles.calls)
        ],
    }


def _layer(analysis: Analysis, layer: Layer) -> dict[str, Any]:
    nodes = analysis.program.nodes
    return {
        "index": layer.index,
        "begin": nodes[layer.begin].name,
        "end": nodes[layer.end].name,
        "times": layer.times,
        "blocks": [
            {"kind": block.kind, "sparse": block.sparse, "join": nodes[block.join.call].name}
            for block in layer.blocks
        ],
    }


def _layout(analysis: Analysis, call: int) -> str:
    p = analysis.program
    of = analysis.solution.typing.types[p.first[call]] if p.outs[call] else None
    return render(of, analysis.mesh.names()) if isinstance(of, Layout) else ""


def _kind(block: Block) -> str:
    return "sparse attention" if block.sparse else block.kind


def lines(analysis: Analysis, roles: Roles) -> Iterator[tuple[bool, str]]:
    """Yield the structure as text, a line a node, with headings (True) for layers and what stands outside of them."""
    data = described(analysis, roles)
    nodes = data["nodes"]
    widths = [
        max((len(printable(node[key])) for node in nodes), default=0) for key in ("role", "name", "target")
    ]
    last: Any = ()
    for node in nodes:
        if node["layer"] != last:
            last = node["layer"]
            yield (
                True,
                "outside of the layers"
                if last is None
                else _heading(data["layers"][last], roles.layers[last]),
            )
        row = (printable(node[key]).ljust(width) for key, width in zip(("role", "name", "target"), widths))
        yield False, f"  {'  '.join(row)}  {printable(node['layout'])}".rstrip()
    if not nodes:
        yield False, "no decoder was found"


def _heading(data: dict[str, Any], layer: Layer) -> str:
    kinds = ", ".join(_kind(block) for block in layer.blocks)
    times = f" x {layer.times}" if layer.times > 1 else ""
    return f"layer {layer.index}{times}: {kinds}  ({printable(data['begin'])} .. {printable(data['end'])})"


def run(graph: str, form: str, color: str, **program: Any) -> int:
    """Find the decoder's structure and print it; the exit code is 0, also where there is none."""
    options = engine_options(program)
    analysis = analyse(graph, **options)
    warn_unused(options["plan"], [analysis.plan.unused])
    roles = find_roles(analysis)
    if form == "json":
        click.echo(json.dumps({"format": FORMAT, "graph": graph, **described(analysis, roles)}, indent=1))
        return 0
    colored = wants_color(color, sys.stdout.isatty())
    for heading, text in lines(analysis, roles):
        click.echo(click.style(text, bold=True) if heading and colored else text, color=colored)
    return 0
