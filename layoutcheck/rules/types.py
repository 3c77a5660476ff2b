"""What a rule is: the data that the rule notation denotes.

A rule says how factors run through one op. Nothing here knows any op; the texts live in `rules/ops/`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any as AnyValue
from typing import Literal, TypeAlias

import attrs

from layoutcheck.errors import InputError

__all__ = [
    "Any",
    "Axis",
    "AxisPattern",
    "Label",
    "OperandPattern",
    "OutputPattern",
    "Param",
    "Pattern",
    "Rule",
    "Unit",
    "Variadic",
]


@attrs.frozen
class Label:
    """A factor's name in a pattern; `whole` is the mark `!`: no group may shard it."""

    name: str
    whole: bool = False


@attrs.frozen
class Variadic:
    """`t..`: any number of leading axes, aligned at the right as in broadcasting.

    The label's name is `*` for `*..`, leading axes whose contents do not matter.
    """

    label: Label


@attrs.frozen
class Axis:
    """One axis made of these factors, major to minor: `t` has one label, `(h d)` two."""

    labels: tuple[Label, ...]


@attrs.frozen
class Unit:
    """`1`: an axis of extent one."""


@attrs.frozen
class Any:
    """`*`: an axis whose contents do not matter."""


AxisPattern: TypeAlias = Variadic | Axis | Unit | Any


@attrs.frozen
class Pattern:
    """The axes of one tensor, in order; none at all is a scalar tensor, `()`."""

    axes: tuple[AxisPattern, ...]

    def labels(self) -> tuple[Label, ...]:
        """All labels, in order of the axes."""
        found: list[Label] = []
        for axis in self.axes:
            if isinstance(axis, Axis):
                found.extend(axis.labels)
            elif isinstance(axis, Variadic):
                found.append(axis.label)
        return tuple(found)


@attrs.frozen
class OperandPattern:
    """`param: axes`; `optional` may be None in a call, `is_list` (`param[]`) is a list of such tensors.

    `sizes` maps labels to parameters that hold their extent (`(h d=head_dim)`), which tells how a composite
    axis is cut.
    """

    param: str
    optional: bool
    is_list: bool
    pattern: Pattern
    sizes: Mapping[str, str] = attrs.field(factory=dict, hash=False)


@attrs.frozen
class OutputPattern:
    """One output: a tensor with a pattern, nothing (`-`), or the layout of an operand (`=name`).

    `new` maps labels that no operand has to the parameter that holds their extent (`h=num_heads`).
    """

    kind: Literal["tensor", "none", "same"]
    pattern: Pattern | None = None
    same_as: str | None = None
    new: Mapping[str, str] = attrs.field(factory=dict, hash=False)


@attrs.frozen
class Param:
    """A parameter of the op's schema; `default` means nothing where `required`.

    `rest` is the last parameter of `op(*args)`, which takes all further arguments as a tuple.
    """

    name: str
    default: AnyValue = attrs.field(default=None, hash=False)
    required: bool = True
    rest: bool = False


@attrs.frozen
class Rule:
    """One header with its body.

    `target` is `namespace.op` or `namespace.op.overload`. Names in `linear`, `additive`, `addends`,
    `weights`, `whole`, `mutates` and on both sides of `scales` are parameters. An addend is added to what the
    other operands give, so it is Partial exactly where that is. `outdtypes` has a word an output: a parameter
    (whose dtype, or which as a dtype, is the output's), a dtype's name, or None for the op's usual dtype.
    `widens` says what an output becomes that would be of integers (or of truth values only), and what dtype.
    `then` are transforms applied to output 0 afterwards. `into` says which label's domain the values of an
    integer operand (a parameter's name) or output (`out0`, `out1`, ...) point into. `causal` says which label's
    rows an argument, if true, counts from the first one on. `part` is the op's part in a
    decoder where its axes do not tell: a word and, for a norm, the parameters that it adds up first.
    """

    target: str
    params: tuple[Param, ...]
    kind: Literal["factors", "elementwise", "code"]
    operands: tuple[OperandPattern, ...] = ()
    outputs: tuple[OutputPattern, ...] = ()
    code: str | None = None
    options: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    linear: frozenset[str] = frozenset()
    additive: frozenset[str] = frozenset()
    addends: frozenset[str] = frozenset()
    weights: frozenset[str] = frozenset()
    whole: frozenset[str] = frozenset()
    scales: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    mutates: tuple[str, ...] = ()
    outdtypes: tuple[str | None, ...] = ()
    widens: tuple[str, str] | None = None
    then: tuple[tuple[str, Mapping[str, str]], ...] = attrs.field(default=(), hash=False)
    part: tuple[str, ...] = ()
    into: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    causal: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    doc: str = ""
    source: str = attrs.field(default="", eq=False)

    def __repr__(self) -> str:
        return f"<Rule {self.target}: {self.kind}{f' {self.code}' if self.code else ''}>"

    @property
    def outdtype(self) -> str | None:
        """The word for output 0 (see `outdtypes`), or None."""
        return self.outdtypes[0] if self.outdtypes else None

    @property
    def param_names(self) -> tuple[str, ...]:
        """The parameters' names in order."""
        return tuple(param.name for param in self.params)

    def bind(self, args: Sequence[AnyValue], kwargs: Mapping[str, AnyValue]) -> dict[str, AnyValue]:
        """Each parameter's value in one call, in the order of the header, defaults filled in.

        Raises InputError where there are too many arguments, an unknown or doubled one, or a required one is
        missing.
        """
        params = self.params
        if len(args) > len(params) and not (params and params[-1].rest):
            raise InputError(
                f"{self.target} takes {len(params)} arguments ({', '.join(self.param_names)}), "
                f"and {len(args)} are given",
                where=self.source,
            )
        bound: dict[str, AnyValue] = {}
        left = len(kwargs)
        for i, param in enumerate(params):
            name = param.name
            if i < len(args):
                if name in kwargs:
                    raise InputError(f"{self.target} is given its argument {name} twice", where=self.source)
                bound[name] = tuple(args[i:]) if param.rest else args[i]
            elif name in kwargs:
                bound[name] = kwargs[name]
                left -= 1
            elif param.required:
                raise InputError(f"{self.target} needs its argument {name}", where=self.source)
            else:
                bound[name] = param.default
        if left:
            unknown = next(name for name in kwargs if name not in bound)
            raise InputError(
                f"{self.target} has no argument {unknown} (it has {', '.join(self.param_names)})",
                where=self.source,
            )
        return bound
