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
    "assert_equivalent": "assertions",
    "assert_same_typing": "assertions",
    "assert_well_typed": "assertions",
    "Builder": "builder",
    "Value": "builder",
    "Decoder": "decoder",
    "Layers": "decoder",
    "bodies": "strategies",
    "contracts": "strategies",
    "decoders": "strategies",
    "graphs": "strategies",
    "layouts": "strategies",
    "op_chains": "strategies",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'layoutcheck.testing' has no attribute {name!r}")
    value = getattr(import_module(f"layoutcheck.testing.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
