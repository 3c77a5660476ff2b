"""Which kernels an op runs: data in ``rules/kernels/*.kernels``, read here.

A stanza is one or more headers in column 0, then a line for each kernel that runs::

    tensor_cast.static_quant_linear
        gemm m=x[:-1] n=w[1] k=w[0] dtype=dtype(x) quantise=0

A header is an op (``namespace.op``, also with its overload), or what its rule says: ``code NAME`` a transform, ``part NAME``,
``contraction``, ``kind elementwise|factors|code``. The first that fits counts, in this order: the op with its overload, the op, its
part, ``contraction``, its code, its kind. The body ``free`` means that nothing runs. ``if=`` leaves a kernel out where it is
false; a kernel's name may carry a label (``gemm:query``).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from attrs import frozen

from layoutcheck.errors import InputError
from layoutcheck.expressions import parse_expression
from layoutcheck.resources import rules_dir

_SPLIT = re.compile(r"\s+(?=[A-Za-z_]\w*=(?!=))")
_OP = re.compile(r"[A-Za-z_]\w*(?:\.\w+){1,2}\Z")
MOST_CHARACTERS = 500
_WORDS = ("code", "part", "kind")


@frozen
class Line:
    """One kernel of an op: its name, a label, and its sizes and options as expressions."""

    kernel: str
    label: str
    values: Mapping[str, ast.expr]
    condition: ast.expr | None
    where: str


@frozen
class KernelMap:
    """What ops run: by op, by what rules say of them."""

    ops: Mapping[str, tuple[Line, ...]]
    said: Mapping[tuple[str, str], tuple[Line, ...]]

    def find(self, target: str, said: Sequence[tuple[str, str]]) -> tuple[Line, ...] | None:
        """The kernels of an op, None where nothing is known of it.

        Args:
            target: ``namespace.op.overload``.
            said: what its rule says, as (word, name), the most telling first.
        """
        found = self.ops.get(target)
        if found is None:
            found = self.ops.get(target.rsplit(".", 1)[0])
        if found is None:
            found = next((self.said[key] for key in said if key in self.said), None)
        return found


def load_kernel_map(folders: Sequence[str | Path] = ()) -> KernelMap:
    """Read the shipped kernels and those of a user's folders, which win.

    Raises:
        InputError: a file cannot be read or has a malformed line.
    """
    own = _shipped()
    if not folders:
        return own
    ops, said = dict(own.ops), dict(own.said)
    for folder in folders:
        for path in sorted(Path(folder).glob("*.kernels")):
            _read(path, ops, said)
    return KernelMap(ops, said)


@lru_cache(maxsize=1)
def _shipped() -> KernelMap:
    ops: dict[str, tuple[Line, ...]] = {}
    said: dict[tuple[str, str], tuple[Line, ...]] = {}
    for path in sorted((rules_dir() / "kernels").glob("*.kernels")):
        _read(path, ops, said)
    return KernelMap(ops, said)


def _read(
    path: Path, ops: dict[str, tuple[Line, ...]], said: dict[tuple[str, str], tuple[Line, ...]]
) -> None:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", where=str(path)) from error
    headers: list[str] = []
    body: list[Line] = []

    def close() -> None:
        for header in headers:
            words = header.split()
            if len(words) == 1 and words[0] != "contraction":
                ops[header] = tuple(body)
            else:
                said[(words[0], words[1] if len(words) > 1 else "")] = tuple(body)

    open_body = False
    for number, raw in enumerate(text.splitlines(), 1):
        where = f"{path.name}:{number}"
        line = raw.split("#", 1)[0].rstrip()
        if not line:
            continue
        if line[0].isspace():
            if not headers:
                raise InputError("a kernel without a header", where=where)
            open_body = True
            parsed = _line(line.strip(), where)
            if parsed is not None:
                body.append(parsed)
            continue
        if open_body:
            close()
            headers, body, open_body = [], [], False
        headers.extend(_headers(line.split(), where))
    if headers and not open_body:
        raise InputError(f"{headers[-1]} has no body", where=f"{path.name}: end")
    if open_body:
        close()


def _headers(words: list[str], where: str) -> list[str]:
    if words[0] in _WORDS and len(words) > 1:
        return [f"{words[0]} {name}" for name in words[1:]]
    if words == ["contraction"]:
        return words
    if len(words) == 1 and _OP.match(words[0]):
        return words
    raise InputError(f"not a header: {' '.join(words)}", where=where)


def _line(text: str, where: str) -> Line | None:
    if text == "free":
        return None
    head, *pairs = _SPLIT.split(text)
    kernel, _, label = head.partition(":")
    if not kernel.isidentifier():
        raise InputError(f"not a kernel: {head}", where=where)
    values: dict[str, ast.expr] = {}
    for pair in pairs:
        name, _, expression = pair.partition("=")
        if len(expression) > MOST_CHARACTERS:
            raise InputError(f"an expression of more than {MOST_CHARACTERS} characters", where=where)
        try:
            values[name] = parse_expression(expression.strip())
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise InputError(f"not an expression: {expression}", where=where) from error
    return Line(kernel, label, values, values.pop("if", None), where)
