"""The options that several commands take, and how their texts are read."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from layoutcheck.codes import CODES
from layoutcheck.errors import InputError

_Command = TypeVar("_Command", bound=Callable[..., Any])
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\Z")
TRUST = ("shape-only",)

_PROGRAM = (
    click.option("--tp", metavar="N", help="Size of the tensor-parallel group: short for --group tp=N."),
    click.option(
        "--group", "groups", multiple=True, metavar="NAME=SIZE", help="Size of a group: a number or a symbol."
    ),
    click.option("--rank", type=click.IntRange(0), metavar="R", help="The rank that the graph was made on."),
    click.option("--world", type=click.IntRange(1), metavar="N", help="The number of ranks."),
    click.option(
        "--tokens", multiple=True, metavar="NAME:DIM", help="Dimension DIM of input NAME counts tokens."
    ),
    click.option(
        "--layout",
        "layouts",
        multiple=True,
        metavar="NAME=TEXT",
        help="The layout of an input, a weight or an output.",
    ),
    click.option(
        "--assume", "assumptions", multiple=True, metavar="EXPR", help='A fact, such as "T % 4 == 0".'
    ),
    click.option("--rules", multiple=True, metavar="DIR", help="A folder with *.rules files of your own."),
    click.option("--plan", metavar="FILE", help="A plan: the weights' layouts by module name."),
    click.option(
        "--trust", multiple=True, metavar="ROLE=shape-only", help="Keep a modelling fiction as a warning."
    ),
)


def program_options(command: _Command) -> _Command:
    """Add the options that say what is known about the program to a command."""
    for option in reversed(_PROGRAM):
        command = option(command)
    return command


def pairs(texts: Iterable[str], option: str, form: str = "NAME=VALUE") -> dict[str, str]:
    """Return ``NAME=VALUE`` texts as a dictionary.

    Raises:
        InputError: a text has another form, or a name is there twice with different values.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, sign, value = (part.strip() for part in text.partition("="))
        if not (name and sign and value):
            raise InputError(f"expected {form}, got {text!r}", where=option)
        if found.setdefault(name, value) != value:
            raise InputError(f"{name} is given twice: {found[name]} and {value}", where=option)
    return found


def group_sizes(tp: str | None, texts: Sequence[str]) -> dict[str, int | str]:
    """Return the groups' sizes, numbers from 1 or symbols; ``tp`` is one more group of that name.

    Raises:
        InputError: a size is neither, or a group has two.
    """
    sizes = pairs([*([f"tp={tp}"] if tp is not None else []), *texts], "--group", "NAME=SIZE")
    return {name: _size(name, size) for name, size in sizes.items()}


def _size(name: str, text: str) -> int | str:
    if text.isascii() and text.isdecimal() and len(text) <= 9 and int(text) >= 1:
        return int(text)
    if text.isidentifier():
        return text
    raise InputError(
        f"the size of a group is a number from 1 or a symbol, not {text!r}", where=f"--group {name}"
    )


def token_axes(texts: Sequence[str]) -> list[tuple[str, int]]:
    """Return ``NAME:DIM`` texts as pairs; a dimension may count from the end (-1).

    Raises:
        InputError: a text has another form.
    """
    axes = []
    for text in texts:
        name, _, dim = text.rpartition(":")
        if not name or not re.fullmatch(r"-?[0-9]{1,3}", dim):
            raise InputError(f"expected NAME:DIM, such as input_ids:1, got {text!r}", where="--tokens")
        axes.append((name, int(dim)))
    return axes


def trust_levels(texts: Sequence[str]) -> dict[str, str]:
    """Return ``ROLE=shape-only`` texts as a dictionary.

    Raises:
        InputError: a text has another form, or names another level.
    """
    found = pairs(texts, "--trust", "ROLE=shape-only")
    for role, level in found.items():
        if level not in TRUST:
            raise InputError(
                f"unknown level {level!r} for {role}; there is {', '.join(TRUST)}", where="--trust"
            )
        if not _NAME.match(role):
            raise InputError(f"{role!r} is no role, such as moe.shared", where="--trust")
    return found


def code_prefixes(texts: Sequence[str], option: str) -> tuple[str, ...]:
    """Return the prefixes of finding codes in comma-separated texts; names of codes are taken as well.

    Raises:
        InputError: a prefix fits no code.
    """
    by_name = {info.name: code for code, info in CODES.items()}
    found = []
    for word in (word.strip() for text in texts for word in text.split(",")):
        prefix = by_name.get(word.lower(), word.upper())
        if not word or not any(code.startswith(prefix) for code in CODES):
            raise InputError(f"no finding code begins with {word!r}; see layoutcheck explain", where=option)
        found.append(prefix)
    return tuple(found)


def existing(text: str, option: str, *, folder: bool = False) -> Path:
    """Return the path that an option names.

    Raises:
        InputError: there is no such file or folder.
    """
    path = Path(text)
    if not (path.is_dir() if folder else path.is_file()):
        raise InputError(f"no such {'folder' if folder else 'file'}: {text}", where=option)
    return path


def wants_color(choice: str, terminal: bool) -> bool:
    """Say whether to use colours: the option first, then NO_COLOR and FORCE_COLOR, then the terminal."""
    if choice != "auto":
        return choice == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return terminal and os.environ.get("TERM") != "dumb"
