"""Contracts: which layout each boundary of a decoder holds, as data under `rules/contracts/`, and checking them."""

from __future__ import annotations

from layoutcheck.contracts.check import check_contract
from layoutcheck.contracts.model import Boundary, Contract
from layoutcheck.contracts.read import contract_names, load_contract, parse_contract

__all__ = ["Boundary", "Contract", "check_contract", "contract_names", "load_contract", "parse_contract"]
