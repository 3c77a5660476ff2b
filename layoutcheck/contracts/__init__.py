"""Contracts: which layout each boundary of a decoder holds, as data under `rules/contracts/`, and checking them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from layoutcheck.contracts.check import check_contract as check_contract
    from layoutcheck.contracts.model import Boundary as Boundary
    from layoutcheck.contracts.model import Contract as Contract
    from layoutcheck.contracts.read import contract_names as contract_names
    from layoutcheck.contracts.read import load_contract as load_contract
    from layoutcheck.contracts.read import parse_contract as parse_contract

# Loaded when first used: a graph's report lives here too, and most checks ask for no contract.
_HOMES = {
    "Boundary": "model",
    "Contract": "model",
    "check_contract": "check",
    "contract_names": "read",
    "load_contract": "read",
    "parse_contract": "read",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
