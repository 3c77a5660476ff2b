"""Fit the constants in rules/hardware to measured times, and say how far off they are on rows held out.

    python benchmarks/fit_hardware.py [--measured ../shared/measured] [--seed 0] [--write]

A random half of the sites ((n, k) of a product, message size of a collective, model configuration of the
rest) is fitted on, the other half is only predicted. The table gives the held-out mean absolute relative
error beside two references on the same rows: the plain roofline (peak and bandwidth), and the roofline with
fixed efficiencies (0.7 of peak, 0.6 of bandwidth, 5 us launch). ``--write`` puts constants and errors into
rules/hardware. Needs the extra ``fit``.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from fit_classes.attention import attention
from fit_classes.base import GOALS, Class
from fit_classes.links import collectives
from fit_classes.moe import grouped_gemm
from fit_classes.products import gemm
from fit_classes.sparse import sparse

from layoutcheck.cost.fit import Errors, errors, fit_constants, split_by_site
from layoutcheck.errors import InputError

ROOT = Path(__file__).resolve().parent.parent


def read(folder: Path, name: str) -> list[dict[str, str]]:
    """Return the rows of one collection; a few have a time of zero, which is none."""
    with (folder / name).open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if float(row["measured_us"]) > 0]


def classes(folder: Path) -> Iterator[Class]:
    """Yield every kernel class with its measured rows."""
    yield from gemm(read(folder, "gemm.csv"))
    yield from sparse(read(folder, "dsa_kernels.csv"))
    yield from grouped_gemm(read(folder, "moe_grouped_gemm.csv"))
    yield from attention(read(folder, "attention.csv"))
    yield from collectives(read(folder, "collectives.csv"))


def references(item: Class) -> tuple[Any, Any]:
    """Return the plain and the fixed-efficiency roofline's times."""
    plain = np.maximum(item.flops / item.peak, item.bytes / item.rate)
    fixed = np.maximum(item.flops / (0.7 * item.peak), item.bytes / (0.6 * item.rate)) + 5
    return plain, fixed


def round_to(value: float, digits: int = 4) -> float:
    """Return a value to so many significant digits, None for none."""
    return float(f"{value:.{digits}g}")


def entry(item: Class, constants: dict[str, float], parts: dict[str, dict[str, Errors]], seed: int) -> Any:
    """Return what goes into the hardware file for one class."""
    first = next(iter(parts.values()))["model"]
    details: dict[str, Any] = {"fitted_rows": int(item.train.sum()), "site": item.site_name, "seed": seed}
    for part, found in parts.items():
        if found["model"].rows:
            details[part] = {
                "rows": found["model"].rows,
                "mean": round_to(found["model"].mean, 3),
                "median": round_to(found["model"].median, 3),
                "beyond_a_factor_of_two": found["model"].beyond_half,
                "plain_roofline": round_to(found["plain"].mean, 3),
                "fixed_efficiency_roofline": round_to(found["fixed"].mean, 3),
            }
    return {
        "constants": constants,
        "structure": item.structure,
        "measured": True,
        "held_out": round_to(first.mean, 3),
        "details": details,
        "source": item.source,
    }


def write(results: dict[str, dict[str, dict[str, Any]]], folder: Path) -> None:
    """Put fitted classes into the hardware files; what was not fitted now stays as it is."""
    for hardware, sections in results.items():
        path = folder / f"{hardware}.json"
        data = json.loads(path.read_text(encoding="utf-8"))
        for section, found in sections.items():
            into = data.setdefault(section, {})
            for key, value in found.items():
                kernel, _, variant = key.partition("/")
                (into.setdefault(kernel, {}) if variant else into)[variant or kernel] = value
        path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def percent(value: float) -> str:
    """Return a share as a percentage of at most four characters."""
    return "-" if value != value else f"{100 * value:.1f}" if value < 10 else ">999"


def row(name: str, found: dict[str, Errors], goal: float | None) -> str:
    """Return one line of the table."""
    model = found["model"]
    verdict = ""
    if goal is not None and model.rows:
        missed = f"missed by {100 * (model.mean - goal):.1f}"
        verdict = f"{100 * goal:.0f} {'met' if model.mean <= goal else missed}"
    cells = [percent(e.mean) for e in (model, found["plain"], found["fixed"])]
    return (
        f"{name:<58}{model.rows:>6}{cells[0]:>8}{percent(model.median):>8}{model.beyond_half:>5}"
        f"{cells[1]:>8}{cells[2]:>8}  {verdict}"
    )


def main(arguments: list[str]) -> int:
    """Fit everything, print the table, write the files if asked to."""
    parser = argparse.ArgumentParser(description="Fit the constants in rules/hardware to measured times.")
    parser.add_argument("--measured", type=Path, default=ROOT.parent / "shared" / "measured")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="write constants and errors into rules/hardware")
    parser.add_argument("--only", default="", help="only classes whose name contains this")
    options = parser.parse_args(arguments)
    if not options.measured.is_dir():
        print(f"no measurements in {options.measured}", file=sys.stderr)
        return 2
    print(f"held-out errors in %, seed {options.seed}: half of the sites fitted on, the other half predicted")
    print(f"{'class':<58}{'rows':>6}{'mean':>8}{'median':>8}{'>2x':>5}{'plain':>8}{'fixed':>8}  goal")
    results: dict[str, dict[str, dict[str, Any]]] = defaultdict(lambda: defaultdict(dict))
    pools: dict[str, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for item in classes(options.measured):
        name = f"{item.hardware} {item.key}"
        if options.only not in name:
            continue
        item.train = split_by_site(item.sites, options.seed)
        try:
            constants = fit_constants(
                item.predict, item.measured, item.train, item.parameters, item.prior, item.weights
            )
        except InputError as error:
            print(f"{name:<58}  not fitted: {error}")
            continue
        every = np.ones(len(item.measured), bool)
        series = dict(zip(("plain", "fixed"), references(item))) | {"model": item.predict(constants, every)}
        parts: dict[str, dict[str, Errors]] = {}
        for part, mask in item.parts.items():
            held = mask & ~item.train
            parts[part] = {k: errors(v[held], item.measured[held]) for k, v in series.items()}
            print(row(f"{name} {part}".strip(), parts[part], GOALS.get(item.goals.get(part, ""))))
            if part in item.goals:
                for k, v in series.items():
                    pools[item.goals[part]][k].append(v[held])
                pools[item.goals[part]]["measured"].append(item.measured[held])
        section = "collectives" if item.collective else "kernels"
        results[item.hardware][section][item.key] = entry(item, constants, parts, options.seed)
    print("\nall classes that a goal names, pooled")
    for goal, pool in pools.items():
        together = np.concatenate(pool["measured"])
        found = {k: errors(np.concatenate(pool[k]), together) for k in ("model", "plain", "fixed")}
        print(row(goal, found, GOALS[goal]))
    if options.write:
        write(results, ROOT / "rules" / "hardware")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
