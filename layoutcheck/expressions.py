"""Expressions in rule files and profiles, in Python's grammar. They are parsed, never run by Python."""

from __future__ import annotations

import ast
import warnings


def parse_expression(text: str) -> ast.expr:
    """The syntax tree of one expression.

    Python's remarks on style (`1in x`) are kept to ourselves: they would stand on stderr without a file or a line.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: as `ast.parse` does.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text, mode="eval").body
