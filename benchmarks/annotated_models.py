"""Annotated transformers models on simulated ranks against transformers itself.

    python benchmarks/annotated_models.py [--families Llama,..] [--ranks 2,4] [--contracts NAME,..] [--plan FILE]

Prints a line for each model, contract, number of ranks and number of tokens (exported for so many, or for any): the largest
difference of a logit, the conversions that run, and of the elements of matrices the percentage that is cut. `--families` also takes
those that are not among the default ones, `--plan` is a plan for all of them. Exit code 1 if a difference is more than float32
explains or the annotated graph does not check clean.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import torch  # noqa: E402
from ranks.real_models import FAMILIES, compared, export, fitting, ids_of  # noqa: E402

from layoutcheck.errors import InputError  # noqa: E402
from layoutcheck.placement.annotated import AnnotatedGraph  # noqa: E402


def cut_of(family: str, exported: int | None, annotated: AnnotatedGraph) -> float:
    """How much of a model's matrices is cut, embeddings and head among them."""
    inputs = export(family, exported).inputs(ids_of(exported or 7))
    sizes = {
        name: x.numel()
        for name, x in inputs.items()
        if isinstance(x, torch.Tensor) and x.is_floating_point() and x.dim() > 1
    }
    return sum(n for name, n in sizes.items() if name in annotated.shards) / sum(sizes.values())


LENGTHS = ((8, 8), (7, 7), (None, 12), (None, 7))
TOLERANCE = 2e-5


def main() -> int:
    """Run all cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--contracts", default="")
    parser.add_argument("--plan", default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    wrong = cases = 0
    print(f"{'model':<12}{'contract':<20}{'ranks':>5}{'tokens':>8}{'cut':>5}  {'difference':<12}conversions")
    for family in options.families.split(","):
        for contract in options.contracts.split(",") if options.contracts else fitting(family):
            for ranks in (int(n) for n in options.ranks.split(",")):
                for exported, tokens in LENGTHS:
                    label = str(tokens) if exported is not None else f"any, {tokens}"
                    line = f"{family:<12}{contract:<20}{ranks:>5}{label:>8}"
                    cases += 1
                    try:
                        found = compared(family, exported, tokens, contract, ranks, plan=options.plan)
                    except InputError as error:
                        wrong += 1
                        print(line, error, flush=True)
                        continue
                    annotated = found.run.annotated[0]
                    counts = ", ".join(f"{n} {kind}" for kind, n in sorted(annotated.counts().items()))
                    bad = found.difference > TOLERANCE or bool(found.findings)
                    wrong += bad
                    cut = f"{cut_of(family, exported, annotated):>5.0%}"
                    mark = "  WRONG" if bad else ""
                    print(f"{line}{cut}  {found.difference:<12.3g}{counts}{mark}", flush=True)
    print(f"{cases - wrong} of {cases} give transformers' logits and check clean")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
