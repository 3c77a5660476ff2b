"""Recorded shapes against computed ones (LC902). Batches of one are elided freely, so extents of one do not count."""

from __future__ import annotations

from layoutcheck.findings import Finding, Operand, Place
from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.infer.solver.solve import recorded_meta
from layoutcheck.layouts import Layout, render
from layoutcheck.program import CALL
from layoutcheck.symbols import Size


def _plain(shape: tuple[Size, ...]) -> list[Size]:
    return [n for n in shape if n != 1]


def stale_shapes(analysis: Analysis) -> list[Finding]:
    """One finding where a recorded shape first differs from the computed one; those that follow are counted under it."""
    p, types = analysis.program, analysis.solution.typing.types
    names = analysis.mesh.names()
    stale: dict[int, int] = {}
    roots: dict[int, tuple[int, list[tuple[str, str]]]] = {}
    order: list[tuple[int, int]] = []
    owner: list[int] = [-1] * p.n_values
    for k, kind in enumerate(p.kind):
        carried = next((owner[v] for v in p.inputs[k] if owner[v] >= 0), -1)
        for value in range(p.first[k], p.first[k] + p.outs[k]):
            owner[value] = carried
            if kind != CALL:
                continue
            of = types[value]
            meta = recorded_meta(p, value)
            if meta is None or not isinstance(of, Layout) or _plain(meta.shape) == _plain(of.shape):
                continue
            stale[value] = k
            if carried >= 0:
                roots[carried][1].append(("LC902", p.name_of(value)))
            else:
                roots[value] = (k, [])
                order.append((value, k))
                owner[value] = value
    out = []
    for value, k in order:
        of = types[value]
        meta = recorded_meta(p, value)
        assert meta is not None
        node = p.nodes[k]
        location = (
            None
            if node.location is None
            else Place(node.location.file, node.location.line, node.location.function or "")
        )
        recorded = ", ".join(str(n) for n in meta.shape)
        computed = ", ".join(str(n) for n in of.shape)
        out.append(
            Finding(
                code="LC902",
                node=node.name,
                message=f"recorded as [{recorded}], computed as [{computed}]",
                module=node.module or "",
                location=location,
                operands=(Operand(p.name_of(value), 0, render(of, names), node.name),),
                consequences=tuple(roots[value][1]),
                graph=analysis.path,
            )
        )
    return out
