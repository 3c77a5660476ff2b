"""Pictures of a sweep. matplotlib is an extra: ``pip install 'layoutcheck[plots]'``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from layoutcheck.cost.sweep import pareto
from layoutcheck.errors import InputError

KINDS = ("time", "breakdown", "pareto")
_FORMS = (".png", ".svg", ".pdf")


def check_name(name: str) -> None:
    """Refuse a file that cannot be drawn into.

    Raises:
        InputError: another suffix, no such folder, or matplotlib is missing.
    """
    path = Path(name)
    if path.suffix not in _FORMS:
        raise InputError(f"a picture is one of {', '.join(_FORMS)}, not {name}", where="--plot")
    if not path.parent.is_dir():
        raise InputError(f"no such folder: {path.parent}", where="--plot")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise InputError(
            "pictures need matplotlib: pip install 'layoutcheck[plots]'", where="--plot"
        ) from error


def draw(rows: Sequence[Mapping[str, Any]], kind: str, name: str, title: str) -> None:
    """Draw a sweep.

    Args:
        rows: its points.
        kind: ``time`` (against tokens, a line each combination), ``breakdown`` (bars by role at the most tokens), ``pareto``
            (time a token against what a rank holds, and what no other point beats).
        name: the file.
        title: of the picture.
    """
    check_name(name)
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.add_subplot()
    {"time": _time, "breakdown": _breakdown, "pareto": _pareto}[kind](axes, rows)
    axes.set_title(title)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7)
    figure.savefig(name)


def _colour(i: int) -> Any:
    """Twenty colours in turn: more than there are roles."""
    import matplotlib

    return matplotlib.colormaps["tab20"](i % 20)


def _label(row: Mapping[str, Any]) -> str:
    return f"{row['contract']} {row['hardware']} tp{row['tp']} dp{row['dp']} ep{row['ep']}"


def _time(axes: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    lines: dict[str, list[tuple[int, float]]] = defaultdict(list)
    contexts = {row["context"] for row in rows}
    for row in rows:
        more = f" context {row['context']}" if len(contexts) > 1 else ""
        lines[_label(row) + more].append((row["tokens"], row["ms"]))
    for label, points in lines.items():
        points.sort()
        axes.plot(*zip(*points), label=label, marker="o" if len(points) < 30 else None, markersize=3)
    axes.set_xlabel("tokens")
    axes.set_ylabel("ms")


def _breakdown(axes: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    most = max(row["tokens"] for row in rows)
    chosen = [row for row in rows if row["tokens"] == most]
    roles = list(dict.fromkeys(n for row in chosen for n in row if n.endswith("_ms")))
    roles.sort(key=lambda n: -sum(row.get(n, 0) for row in chosen))
    left = [0.0] * len(chosen)
    names = [f"{_label(row)} context {row['context']}" for row in chosen]
    for i, role in enumerate(roles):
        widths = [float(row.get(role, 0)) for row in chosen]
        axes.barh(names, widths, left=left, label=role.removesuffix("_ms"), color=_colour(i))
        left = [a + b for a, b in zip(left, widths)]
    axes.set_xlabel(f"ms at {most} tokens")


def _pareto(axes: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    points = [{**row, "us_per_token": 1e6 / row["tokens_per_s"]} for row in rows]
    x, y = "memory_gib", "us_per_token"
    alike: dict[str, list[Any]] = defaultdict(list)
    for p in points:
        alike[_label(p)].append(p)
    for i, (label, group) in enumerate(alike.items()):
        axes.scatter([p[x] for p in group], [p[y] for p in group], s=12, color=_colour(i), label=label)
    front = pareto(points, x, y)
    axes.step([p[x] for p in front], [p[y] for p in front], where="post", color="0.3", label="not beaten")
    axes.set_xlabel("GiB a rank")
    axes.set_ylabel("us a token")
