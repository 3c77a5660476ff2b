"""Roles: what each node is in the decoder, found from the graph alone (DESIGN 1)."""

from __future__ import annotations

from layoutcheck.roles.branch import role_at, shared_expert_calls
from layoutcheck.roles.detect import find_roles
from layoutcheck.roles.model import ROLES, Block, Join, Layer, Norm, Roles

__all__ = [
    "ROLES",
    "Block",
    "Join",
    "Layer",
    "Norm",
    "Roles",
    "find_roles",
    "role_at",
    "shared_expert_calls",
]
