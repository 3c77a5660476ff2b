"""Sparse attention, and the scores and top-k of its indexer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fit_classes.base import HARDWARE, LAUNCH, Class, Rows, column, group, share, times, tools
from layoutcheck.cost.fit import Parameter
from layoutcheck.cost.hardware import Fit, load_hardware
from layoutcheck.cost.kernels import indexer, sparse_attention


def sparse(rows: Rows) -> Iterator[Class]:
    """Yield the sparse-attention, indexer-scores and top-k kernels."""
    for (op, machine, scores), part in group(rows, "op", "hardware", "score_mode").items():
        hardware = load_hardware(HARDWARE[machine])
        sequences, new, cached, heads = (column(part, x) for x in ("batch_size", "isl", "step", "num_heads"))
        keys = cached + (new + 1) / 2
        queries = sequences * new
        if "topk" in op:
            todo = (0 * queries, 4 * queries * keys)
            spec = (
                "indexer_topk/float32" + ("_ties" if scores == "flat" else ""),
                [share("memory", 0.3, 3.0), LAUNCH, Parameter("row", 1, 0.01, 50)],
            )

            def predict(
                c: Mapping[str, float], s: Any, *, a: Any = (hardware, sequences, new, cached)
            ) -> Any:
                return indexer.topk_us(a[0], *(x[s] for x in a[1:]), fit=Fit(c))

        elif "mqa_logits" in op:
            work = indexer.scores_work(sequences, new, cached)
            todo = (work.flops, work.traffic)
            spec = (
                "indexer_scores/float8_e4m3fn",
                [share("compute", 0.5), LAUNCH, Parameter("block", 1, 0.01, 20)],
            )

            def predict(
                c: Mapping[str, float], s: Any, *, a: Any = (hardware, sequences, new, cached)
            ) -> Any:
                return indexer.scores_us(a[0], *(x[s] for x in a[1:]), fit=Fit(c))

        else:
            work = sparse_attention.work(sequences, new, cached, heads)
            todo = (work.flops, work.traffic)
            spec = (
                "sparse_attention/bfloat16",
                [
                    share("compute", 0.6),
                    share("memory", 0.8, 4.0),
                    Parameter("launch", 5.0, 0.3, 60.0),
                    Parameter("skipped", 0.1, 0.005, 0.9),
                ],
            )

            def predict(
                c: Mapping[str, float], s: Any, *, a: Any = (hardware, sequences, new, cached, heads)
            ) -> Any:
                return sparse_attention.time_us(a[0], *(x[s] for x in a[1:]), fit=Fit(c))

        goal = {"indexer_scores": "indexer scores", "sparse_attention": "sparse attention"}
        yield Class(
            hardware=hardware.name,
            key=spec[0],
            measured=times(part),
            sites=list(zip(sequences, new, cached)),
            site_name="(sequences, new, cached)",
            predict=predict,
            parameters=spec[1],
            structure={},
            flops=todo[0],
            bytes=todo[1],
            peak=hardware.peak("float8_e4m3fn" if "logits" in op else "bfloat16"),
            rate=hardware.bandwidth,
            source=f"fitted to {tools(part)}, {part[0]['kernel_source']}",
            parts={"": np.ones(len(part), bool)},
            goals={"": goal[spec[0].split("/")[0]]} if spec[0].split("/")[0] in goal else {},
        )
