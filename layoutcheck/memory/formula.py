"""Integer formulas as text: what a ledger line prints is what is evaluated.

A formula is a Python expression over symbols with ``+ - * // % /`` and ``ceil(a, b)``, ``min``, ``max``
and ``pad(a, q)``. ``a / b`` is *exact*: a remainder is an error, because a tensor that does not divide
evenly has no such share. Nothing else is understood, so formulas may come from files.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import CodeType
from typing import Any

from layoutcheck.errors import InputError
from layoutcheck.expressions import parse_expression

_LONGEST = 4000
_DEEPEST = 100
_BINARY = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.Div)


def _exact(a: int, b: int) -> int:
    quotient, remainder = divmod(a, b)
    if remainder:
        raise InputError(f"{a} does not divide into {b} equal shares")
    return quotient


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _pad(a: int, q: int) -> int:
    return -(-a // q) * q


_FUNCTIONS: dict[str, Callable[..., int]] = {"ceil": _ceil, "pad": _pad, "min": min, "max": max}
_ENVIRONMENT: dict[str, Any] = {"__builtins__": {}, "_exact": _exact, **_FUNCTIONS}


class _Lower(ast.NodeTransformer):
    """Replace ``a / b`` by a call of the exact division; refuse what is not a formula."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.depth = 0

    def visit(self, node: ast.AST) -> Any:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise InputError("formula is nested too deeply", where=self.text[:60])
        try:
            return self._visit(node)
        finally:
            self.depth -= 1

    def _visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node
        if isinstance(node, ast.Name) and not node.id.startswith("_"):
            return node
        if isinstance(node, ast.BinOp) and isinstance(node.op, _BINARY):
            left, right = self.visit(node.left), self.visit(node.right)
            if isinstance(node.op, ast.Div):
                return ast.Call(ast.Name("_exact", ast.Load()), [left, right], [])
            return ast.BinOp(left, node.op, right)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return ast.UnaryOp(node.op, self.visit(node.operand))
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in _FUNCTIONS
            and not node.keywords
            and len(node.args) >= 2
        ):
            return ast.Call(node.func, [self.visit(a) for a in node.args], [])
        raise InputError(f"{type(node).__name__} is not allowed in a formula", where=self.text[:60])


def _parse(text: str) -> ast.expr:
    if len(text) > _LONGEST:
        raise InputError(f"formula is longer than {_LONGEST} characters", where=text[:60])
    try:
        return parse_expression(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputError(f"not a formula: {error}", where=text[:60]) from None


@lru_cache(maxsize=65536)
def _compiled(text: str) -> CodeType:
    lowered = ast.Expression(_Lower(text).visit(_parse(text)))
    return compile(ast.fix_missing_locations(lowered), "<formula>", "eval")


def evaluate(text: str, symbols: Mapping[str, int]) -> int:
    """Return the value of a formula, an exact integer.

    Raises:
        InputError: the text is no formula, a symbol is not known, or a share is not even.
    """
    try:
        value = eval(_compiled(text), _ENVIRONMENT, symbols)
    except InputError as error:
        raise InputError(error.message, where=error.where or text[:120]) from None
    except NameError as error:
        raise InputError(f"unknown symbol ({error})", where=text[:120]) from None
    except (ZeroDivisionError, TypeError) as error:
        raise InputError(str(error), where=text[:120]) from None
    if type(value) is not int:
        raise InputError(f"formula gives {type(value).__name__}, not an integer", where=text[:120])
    return value


def substitute(text: str, parts: Mapping[str, str]) -> str:
    """Return the formula with names replaced by formulas (put in brackets where they are sums)."""

    def replacement(match: re.Match[str]) -> str:
        part = parts.get(match[0])
        return match[0] if part is None else bracket(part)

    return re.sub(r"[A-Za-z_]\w*", replacement, text)


_ATOM = re.compile(r"\w+|(ceil|pad|min|max)\([^()]*\)")


@lru_cache(maxsize=65536)
def bracket(text: str) -> str:
    """Return the formula, in brackets unless it is one name, number or call."""
    return text if _ATOM.fullmatch(text) else f"({text})"


def product(*factors: str | int) -> str:
    """Return the product of formulas as text; factors of 1 are left out."""
    return "*".join(_factor(text) for text in map(str, factors) if text != "1") or "1"


@lru_cache(maxsize=65536)
def _factor(text: str) -> str:
    """A product can stay open; a sum must be closed, and so must a share: ``n*(a/b)`` is not ``n*a/b``."""
    node = _parse(text)
    closed = isinstance(node, ast.BinOp) and not isinstance(node.op, ast.Mult)
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        node = node.left
    share = isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Div, ast.FloorDiv, ast.Mod))
    return f"({text})" if closed or share or isinstance(node, ast.UnaryOp) else text


@lru_cache(maxsize=65536)
def tidy(text: str) -> str:
    """Return the same formula without needless brackets."""
    return ast.unparse(_parse(text)).replace(" * ", "*").replace(" / ", "/")


def to_sympy(text: str) -> Any:
    """Return the formula as a sympy expression (``a / b`` as a quotient, ``ceil`` as a ceiling)."""
    import sympy

    def build(node: ast.AST) -> Any:
        if isinstance(node, ast.Constant):
            return sympy.Integer(node.value)
        if isinstance(node, ast.Name):
            return sympy.Symbol(node.id, integer=True, positive=True)
        if isinstance(node, ast.UnaryOp):
            return -build(node.operand)
        if isinstance(node, ast.BinOp):
            a, b = build(node.left), build(node.right)
            if isinstance(node.op, ast.Add):
                return a + b
            if isinstance(node.op, ast.Sub):
                return a - b
            if isinstance(node.op, ast.Mult):
                return a * b
            if isinstance(node.op, ast.Div):
                return a / b
            return sympy.floor(a / b) if isinstance(node.op, ast.FloorDiv) else sympy.Mod(a, b)
        assert isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        arguments = [build(a) for a in node.args]
        name = node.func.id
        if name == "ceil":
            return sympy.ceiling(arguments[0] / arguments[1])
        if name == "pad":
            return sympy.ceiling(arguments[0] / arguments[1]) * arguments[1]
        return (sympy.Min if name == "min" else sympy.Max)(*arguments)

    _compiled(text)
    return build(_parse(text))
