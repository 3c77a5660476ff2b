"""The error for input that cannot be used."""

from __future__ import annotations


class InputError(ValueError):
    """Bad input: a file, an option or a rule. ``where`` names the place in it, if there is one."""

    def __init__(self, message: str, where: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.where = where

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message
