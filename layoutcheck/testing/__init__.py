"""For tests of programs that make or rewrite graphs: strategies of hypothesis, and assertions.

    from hypothesis import given
    from layoutcheck.testing import assert_equivalent, decoders

    @given(decoders())
    def test_my_pass(decoder):
        assert_equivalent(my_pass(decoder.build("repeated")), my_pass(decoder.build("expanded")))

The strategies need hypothesis; the builder and the assertions do not.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from layoutcheck.models.builder import Builder as Builder
    from layoutcheck.models.builder import Value as Value
    from layoutcheck.testing.assertions import assert_equivalent as assert_equivalent
    from layoutcheck.testing.assertions import assert_same_typing as assert_same_typing
    from layoutcheck.testing.assertions import assert_well_typed as assert_well_typed
    from layoutcheck.testing.decoder import Decoder as Decoder
    from layoutcheck.testing.decoder import Layers as Layers
    from layoutcheck.testing.strategies import bodies as bodies
    from layoutcheck.testing.strategies import contracts as contracts
    from layoutcheck.testing.strategies import decoders as decoders
    from layoutcheck.testing.strategies import graphs as graphs
    from layoutcheck.testing.strategies import layouts as layouts
    from layoutcheck.testing.strategies import op_chains as op_chains

_HOME = {
    "assert_equivalent": "layoutcheck.testing.assertions",
    "assert_same_typing": "layoutcheck.testing.assertions",
    "assert_well_typed": "layoutcheck.testing.assertions",
    "Builder": "layoutcheck.models.builder",
    "Value": "layoutcheck.models.builder",
    "Decoder": "layoutcheck.testing.decoder",
    "Layers": "layoutcheck.testing.decoder",
    "bodies": "layoutcheck.testing.strategies",
    "contracts": "layoutcheck.testing.strategies",
    "decoders": "layoutcheck.testing.strategies",
    "graphs": "layoutcheck.testing.strategies",
    "layouts": "layoutcheck.testing.strategies",
    "op_chains": "layoutcheck.testing.strategies",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'layoutcheck.testing' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
