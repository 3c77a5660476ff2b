"""Count what holds: rules against running them on ranks, random programs, faults and their twins, mutants.

    python benchmarks/soundness.py [--ranks 1,2,3,4] [--programs 5000] [--only rules|programs|faults]

Prints incorrect claims and refusals of what is so, by op; random programs by whether they had a fault, were
clean, and were equal; and where checker and runs disagree. Exit code 1 if a claim is incorrect, a clean
program differs, or a fault is not shown.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import torch  # noqa: E402
from ranks import (  # noqa: E402  # noqa: E402
    reasons,
    samples_assumed,
    samples_auto,
    samples_fused,
    samples_more,
    samples_rest,
    samples_torch,
)
from ranks.enumerate_rules import verify_sample  # noqa: E402
from ranks.outcomes import outcome  # noqa: E402
from ranks.sizes import arithmetic, assertions, judge_nothing, judge_sizes  # noqa: E402
from support import engine  # noqa: E402
from support.builder import DIALECTS  # noqa: E402
from support.faults import FAULTS  # noqa: E402

from layoutcheck.infer.solver.analysis import analyse  # noqa: E402
from layoutcheck.json_form import graph_from_json  # noqa: E402
from layoutcheck.ranks.shown import with_counter_examples  # noqa: E402
from layoutcheck.ranks.verify import verify  # noqa: E402
from layoutcheck.rules.rulebook import RuleBook  # noqa: E402


def rules(sizes: tuple[int, ...]) -> bool:
    """Judge all samples; True if no claim is incorrect."""
    started = time.process_time()
    book = RuleBook.load()
    samples = [
        *samples_auto.pointwise(book),
        *samples_torch.all_samples(),
        *samples_fused.all_samples(),
        *samples_more.all_samples(),
        *samples_rest.all_samples(),
        *samples_assumed.all_samples(),
    ]
    counts: Counter[str] = Counter()
    why: Counter[str] = Counter()
    covered = set()
    wrong = []
    for sample in samples:
        rule = book.lookup(sample.target)
        covered.add(rule.target if rule else sample.target)
        for v in verify_sample(book, sample, sizes):
            counts["combinations"] += 1
            counts["trials"] += v.trials
            if v.incorrect:
                wrong.append(f"{v.text()}: {v.incorrect[0]}")
            if v.missing:
                why[reasons.reason(v.text()) or "unexplained: " + v.text()] += 1
            counts[
                "claimed" if "claim" in v.kinds else "refused" if v.kinds == {"refused"} else "no claim"
            ] += 1
    for rule in (*arithmetic(book), *assertions(book)):
        covered.add(rule.target)
        judge = judge_nothing if rule.code == "assert_" else judge_sizes
        found = judge(book, rule)
        counts["trials"] += found.trials
        wrong += found.wrong
    print(
        f"rules: {len(covered)} of {len(book.rules)} rules, {len(samples)} calls, {counts['combinations']} combinations of states,"
    )
    print(
        f"  {counts['trials']} trials on {sizes} ranks in {time.process_time() - started:.0f} s of one core"
    )
    print(
        f"  claimed {counts['claimed']}, refused {counts['refused']}, no claim {counts['no claim']}; incorrect {len(wrong)}"
    )
    for line in wrong:
        print(f"  INCORRECT {line}")
    print(f"  refused although it is so: {sum(why.values())}")
    for text, n in why.most_common():
        print(f"    {n:4} {text}")
    left = [t for t in book.rules if t not in covered]
    unsaid = [t for t in left if reasons.uncovered(t) is None]
    print(f"  rules that were not judged: {len(left)}, of these without a reason: {unsaid}")
    for text, n in Counter(reasons.uncovered(t) or "" for t in left).most_common():
        print(f"    {n:4} {text}")
    return not wrong


def programs(n: int) -> bool:
    """Judge random programs; True if no clean one differs."""
    good = True
    for faults in (False, True):
        started = time.process_time()
        rng = random.Random(3)
        counts: Counter[str] = Counter()
        for _ in range(n):
            found = outcome([rng.randrange(1 << 16) for _ in range(30)], faults=faults)
            name = "with a fault" if found.program.wrong else "right"
            counts[
                f"{name}, {'clean' if found.clean else 'refused'}, {'equal' if found.equal else 'differs'}"
            ] += 1
            good &= found.equal or not found.clean
        print(
            f"programs{' with faults' if faults else ''}: {n} in {time.process_time() - started:.0f} s of one core"
        )
        for text, count in sorted(counts.items()):
            print(f"  {count:6} {text}")
    return good


def faults() -> bool:
    """Run faults and twins; True if checker and runs agree but for what is only wasteful."""
    counts: Counter[str] = Counter()
    shown: Counter[str] = Counter()
    apart = []
    for fault in FAULTS:
        for dialect in DIALECTS:
            for size in fault.sizes:
                if size.symbol:
                    continue
                for broken in (True, False):
                    ranks = [size.rank] if fault.groups else range(size.p)
                    graphs = [
                        graph_from_json(fault._build(dialect, replace(size, rank=r), broken)[0])
                        for r in ranks
                    ]
                    own = graphs[0 if fault.groups else size.rank]
                    analysis = analyse(own)
                    verdict = verify(analysis, graphs=None if fault.groups else graphs)
                    report = engine.check(own)
                    codes = {engine.code(f) for f in report.findings}
                    flagged = bool(engine.errors(report)) or (broken and bool(codes & fault.codes))
                    warned = flagged and fault.severity == "warning" and not engine.errors(report)
                    said = []
                    for found in with_counter_examples(analysis, report.findings):
                        if found.counter_example is not None:
                            said.append(found.counter_example["status"])
                    shown.update(said)
                    marked = bool(said) and set(said) == {"conservative"}
                    said_so = "warned of" if warned else "reported" if flagged else "clean"
                    kind = f"{'broken' if broken else 'repaired'}: {said_so}"
                    counts[f"{kind}, {'equal' if verdict.equal else 'differs'}"] += 1
                    # A warning says that numbers are right and work is wasted.
                    if (flagged and not warned) == verdict.equal:
                        apart.append(
                            f"{fault.key} {dialect} {size.label} {'broken' if broken else 'repaired'}"
                            f"{' (marked conservative)' if marked else ''}"
                        )
    print("faults and twins")
    for text, count in sorted(counts.items()):
        print(f"  {count:6} {text}")
    print(f"  findings LC1xx and LC2xx: {', '.join(f'{n} {text}' for text, n in shown.most_common())}")
    print(f"  checker and runs disagree on {len(apart)}: {', '.join(apart)}")
    return not any("differs" in text and ("clean" in text or "warned" in text) for text in counts)


def main() -> int:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", default="1,2,3,4")
    parser.add_argument("--programs", type=int, default=5000)
    parser.add_argument("--only", choices=["rules", "programs", "faults"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    good = True
    if options.only in (None, "programs"):
        good &= programs(options.programs)
    if options.only in (None, "faults"):
        good &= faults()
    if options.only in (None, "rules"):
        good &= rules(tuple(int(p) for p in options.ranks.split(",")))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
