"""JSON documents other than graphs: configs, contracts, plans, hardware, tables, descriptions. One reader, one wording.

A user who gives the wrong file wants to hear what it is, not where a parser stopped. So each reader says what it wants, and the
message says what came instead.
"""

from __future__ import annotations

import json
import os
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

from layoutcheck.errors import InputError

LARGEST = 16 << 20
"""Bytes of a document that are read, unless its reader says otherwise."""
_ARCHIVES = (
    (b"PK\x03\x04", "an archive (.pt2 or .zip)"),
    (b"PK\x05\x06", "an empty archive"),
    (b"\x1f\x8b", "gzipped"),
)


def read_document(
    path: str | Path, what: str, *, form: str = "", also: Container[str] = (), largest: int = LARGEST
) -> dict[str, Any]:
    """The JSON object in a file.

    Args:
        path: the file.
        what: what it should be, with its article, as in "a contract".
        form: the value of its `format`, where it has to have one.
        also: values of `format` that it may have, where it need not have one.
        largest: bytes that are read at most.

    Raises:
        InputError: the file cannot be read, holds a key twice, or is something else; the message says what, where that shows.
    """
    where = str(path)
    data = _bytes(where, what, largest)
    try:
        found = json.loads(data.decode("utf-8-sig"), object_pairs_hook=_no_duplicates)
    except InputError as error:
        raise InputError(error.message, where) from None
    except UnicodeDecodeError:
        raise InputError(f"this is no text, so not {what}", where) from None
    except (ValueError, RecursionError) as error:
        # Too many digits in a number, or nested too deeply, are errors of the same kind.
        raise InputError(f"this is no JSON, so not {what}: {str(error)[:200]}", where) from None
    if not isinstance(found, dict):
        raise InputError(f"this holds no JSON object, so it is not {what}", where)
    other = kind_of(found)
    if form:
        if found.get("format") != form:
            raise InputError(_instead(other, what, f"its `format` is not {form!r}"), where)
    elif other is not None and other != what and found.get("format") not in also:
        raise InputError(_instead(other, what, ""), where)
    return found


def kind_of(document: Mapping[str, Any]) -> str | None:
    """What a JSON object is, with its article, as far as its keys show; None where they do not."""
    form = document.get("format")
    if isinstance(form, str) and form.startswith("layoutcheck-") and len(form) < 60:
        return f"a {form} file"
    if "num_hidden_layers" in document or isinstance(document.get("text_config"), dict):
        return "a model's config.json"
    if isinstance(document.get("weight_map"), dict):
        return "an index of safetensors files"
    return None


def _instead(other: str | None, what: str, reason: str) -> str:
    return f"this is {other}, not {what}" if other is not None else f"this is not {what}: {reason}"


def _bytes(where: str, what: str, largest: int) -> bytes:
    try:
        if os.path.isdir(where):
            raise InputError(f"this is a folder, not {what}", where)
        if os.path.exists(where) and not os.path.isfile(where):
            raise InputError("this is no regular file", where)
        size = os.path.getsize(where)
        if size > largest:
            raise InputError(f"the file has {size} bytes, more than the {largest} that are read", where)
        with open(where, "rb") as stream:
            data = stream.read(largest + 1)
    except FileNotFoundError:
        raise InputError("there is no such file", where or "''") from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where) from None
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError("this is no path", where) from None
    if not data:
        raise InputError("the file is empty", where)
    for magic, name in _ARCHIVES:
        if data.startswith(magic):
            raise InputError(f"this is {name}, not {what}", where)
    return data


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"the key {twice!r} stands twice in one object")
    return found
