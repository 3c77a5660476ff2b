"""Rules from code: `@layoutcheck.rule("mylib.op(x, w)", "x: t.. k, w: k n -> t.. n")`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from layoutcheck.rules.notation import parse
from layoutcheck.rules.rulebook import user_rules

__all__ = ["rule"]

_Function = TypeVar("_Function", bound=Callable[..., object])


def rule(
    header: str,
    body: str,
    *,
    linear: Iterable[str] = (),
    additive: Iterable[str] = (),
    addend: Iterable[str] = (),
    weight: Iterable[str] = (),
    whole: Iterable[str] = (),
    mutates: Iterable[str] = (),
    scale: Mapping[str, str] | None = None,
    outdtype: str | Iterable[str] = (),
    widens: str | Iterable[str] = (),
    part: str | Iterable[str] = (),
    doc: str = "",
) -> Callable[[_Function], _Function]:
    """Register a rule for this process; as a plain call, or as a decorator of the op's function.

    `header` is the op with its parameters, `body` the rule: a factor rule with `->`, `elementwise`, or
    `code NAME key=value ...`. The keyword arguments are the notation's further lines (docs/rules.md), `scale`
    maps a scale's parameter to that of its value. Raises InputError at the first mistake.
    """
    lines = [header, *(f"    {line.strip()}" for line in body.splitlines() if line.strip())]
    for keyword, names in (
        ("linear", linear),
        ("additive", additive),
        ("addend", addend),
        ("weight", weight),
        ("whole", whole),
        ("mutates", mutates),
        ("outdtype", outdtype),
        ("widens", widens),
        ("part", part),
    ):
        words = [names] if isinstance(names, str) else list(names)
        if words:
            lines.append(f"    {keyword} {' '.join(words)}")
    lines.extend(f"    scale {scale_name} of {value}" for scale_name, value in (scale or {}).items())
    if doc:
        lines.append(f"    doc {' '.join(doc.split())}")
    caller = sys._getframe(1)
    user_rules.add(parse("\n".join(lines), f"{caller.f_code.co_filename}:{caller.f_lineno}"))

    def decorate(function: _Function) -> _Function:
        return function

    return decorate
