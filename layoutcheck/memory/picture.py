"""The ledger as a bar picture, with matplotlib (the ``plots`` extra)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from layoutcheck.errors import InputError
from layoutcheck.memory.ledger import Ledger
from layoutcheck.units import GIB

_FORMS = (".png", ".svg", ".pdf")


def draw(ledger: Ledger, path: str | Path, capacity: int | None = None) -> None:
    """Write a picture of one stacked bar: a category a segment, and the capacity as a line.

    Args:
        ledger: what lies on the rank.
        path: a .png, .svg or .pdf file.
        capacity: usable bytes of the device, if known.

    Raises:
        InputError: matplotlib is missing, the ending is another one, or the file cannot be written.
    """
    where = str(path)
    if Path(path).suffix.lower() not in _FORMS:
        raise InputError(f"a picture is a {', '.join(_FORMS)} file", where=where)
    try:
        import matplotlib
    except ImportError:
        raise InputError("a picture needs matplotlib: pip install layoutcheck[plots]") from None
    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 2.6), layout="constrained")
    axes: Any = figure.subplots()
    left = 0.0
    for category, size in ledger.by_category().items():
        width = size / GIB
        axes.barh([0], [width], left=left, label=f"{category} {width:.3f}", edgecolor="white", linewidth=0.5)
        left += width
    if capacity is not None:
        axes.axvline(capacity / GIB, color="black", linestyle="--", label=f"usable {capacity / GIB:.3f}")
    axes.set_yticks([])
    axes.set_xlabel("GiB on the rank")
    axes.set_title(ledger.title, fontsize=9)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.35), ncols=4, fontsize=8, frameon=False)
    try:
        figure.savefig(where, dpi=150)
    except OSError as error:
        raise InputError(f"cannot write: {error.strerror or error}", where=where) from None
