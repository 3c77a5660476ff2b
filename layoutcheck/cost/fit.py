"""Fit a kernel class' constants to measured times. Needs numpy and scipy (the extra ``fit``)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import product
from typing import Any

from attrs import frozen

from layoutcheck.errors import InputError


@frozen
class Parameter:
    """One constant to fit: where to start, and between which bounds it makes sense. All positive.

    A constant that times jump at, the size at which a protocol changes say, has ``choices`` instead of bounds:
    each is tried, and of equal ones the first stays.
    """

    name: str
    start: float
    low: float
    high: float
    choices: tuple[float, ...] = ()


@frozen
class Errors:
    """Relative errors ``|predicted / measured - 1|`` over some rows."""

    rows: int
    mean: float
    median: float
    beyond_half: int
    """Rows that are off by more than a factor of two, either way."""


def errors(predicted: Any, measured: Any) -> Errors:
    """Return the errors of predictions, NaN for no rows."""
    import numpy as np

    if not len(measured):
        return Errors(0, float("nan"), float("nan"), 0)
    ratio = np.asarray(predicted, float) / np.asarray(measured, float)
    off = np.abs(ratio - 1)
    far = int(((ratio > 2) | (ratio < 0.5)).sum())
    return Errors(len(ratio), float(off.mean()), float(np.median(off)), far)


def split_by_site(sites: Sequence[Hashable], seed: int) -> Any:
    """Return a boolean array: True for rows to fit on.

    Half of the distinct sites, drawn at random, are fitted on; all rows of the other half are held out.
    """
    import numpy as np

    distinct = sorted(set(sites), key=repr)
    order = np.random.default_rng(seed).permutation(len(distinct))
    chosen = {distinct[i] for i in order[: len(distinct) // 2]}
    return np.array([s in chosen for s in sites], dtype=bool)


def fit_constants(
    predict: Callable[[Mapping[str, float], Any], Any],
    measured: Any,
    train: Any,
    parameters: Sequence[Parameter],
    prior: float = 0.02,
    weights: Any = None,
) -> dict[str, float]:
    """Return the constants that bring ``predict(constants, rows)`` closest to the measured times.

    Minimises a robust loss of the logarithm of predicted over measured, on the rows of ``train`` only. ``prior``
    pulls weakly to the starting values, which decides what the rows leave open; ``weights`` multiply the errors.

    Raises:
        InputError: there are fewer rows to fit on than constants.
    """
    import numpy as np
    from scipy.optimize import least_squares

    target = np.asarray(measured, float)[train]
    if len(target) <= len(parameters):
        raise InputError(f"{len(target)} rows cannot fit {len(parameters)} constants")
    smooth = [p for p in parameters if not p.choices]
    stepped = [p for p in parameters if p.choices]
    start = np.log([p.start for p in smooth])
    weight = 1.0 if weights is None else np.asarray(weights, float)[train]
    low, high = (np.log([getattr(p, side) for p in smooth]) for side in ("low", "high"))

    def fitted(chosen: dict[str, float]) -> Any:
        def residual(logs: Any) -> Any:
            values = {p.name: float(v) for p, v in zip(smooth, np.exp(logs))}
            error = np.maximum(predict(values | chosen, train), 1e-9) / target - 1
            return np.append(weight * error, prior * (logs - start))

        return least_squares(residual, start, loss="soft_l1", f_scale=0.05, bounds=(low, high))

    trials = [
        dict(zip((p.name for p in stepped), values)) for values in product(*(p.choices for p in stepped))
    ]
    # costs that differ by rounding alone are equal
    chosen, best = min(((c, fitted(c)) for c in trials), key=lambda trial: float(f"{trial[1].cost:.9g}"))
    found = {p.name: float(f"{v:.4g}") for p, v in zip(smooth, np.exp(best.x))} | chosen
    return {p.name: found[p.name] for p in parameters}
