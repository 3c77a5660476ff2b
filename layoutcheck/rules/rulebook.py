"""The rule book: all stanzas of the rule folders, looked up by an op's target."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import attrs

from layoutcheck.errors import InputError
from layoutcheck.rules.notation import Param, Rule, parse

__all__ = ["RuleBook", "UserRules", "canonical_target", "suggestion", "user_rules"]

_BUILTIN = re.compile(r"<(?:built-in )?function (\w+)(?: at 0x[0-9a-f]+)?>\Z")


class UserRules:
    """Rules that code registers in this process; every book looks here first."""

    def __init__(self) -> None:
        self.rules: dict[str, Rule] = {}
        self.version = 0

    def add(self, rules: Iterable[Rule]) -> None:
        """Register rules; one with the same target replaces an earlier one."""
        for rule in rules:
            self.rules[rule.target] = rule
        self.version += 1

    def clear(self) -> None:
        """Forget all of them."""
        self.rules.clear()
        self.version += 1


user_rules = UserRules()


@lru_cache(maxsize=4096)
def canonical_target(target: str) -> str:
    """`namespace.op.overload` of a target as an exporter writes it.

    `torch.ops.aten.mm.default` and `aten::mm.default` give `aten.mm.default`, `_operator.mul` and
    `<built-in function mul>` give `operator.mul`, `<function sym_min at 0x..>` gives `torch.sym_min`.
    """
    target = target.removeprefix("torch.ops.").replace("::", ".")
    if target.startswith("_operator."):
        return target[1:]
    match = _BUILTIN.match(target)
    if match:
        name = match.group(1)
        return f"torch.{name}" if name.startswith("sym_") else f"operator.{name}"
    return target


@attrs.define(eq=False)
class RuleBook:
    """Rules by target. `lookup` knows overloads, in-place forms and `out=` forms (see there)."""

    rules: dict[str, Rule]
    _found: dict[str, Rule | None] = attrs.Factory(dict)
    _version: int = -1

    def __repr__(self) -> str:
        return f"<RuleBook of {len(self.rules)} rules>"

    @classmethod
    def load(cls, dirs: Sequence[Path] | None = None, *, builtin: bool = True) -> RuleBook:
        """The rules of all `*.rules` files of the built-in folder (unless `builtin` is False) and of `dirs`.

        Later folders override earlier ones, target by target; inside a folder a target may stand once.
        Raises InputError for a folder that does not exist and for every mistake in a file.
        """
        rules: dict[str, Rule] = {}
        if builtin:
            rules.update(_builtin_rules())
        for folder in dirs or ():
            rules.update(_load_folder(Path(folder)))
        return cls(rules)

    def lookup(self, target: str) -> Rule | None:
        """The rule for a target as exporters write it, or None.

        Tried in turn: the exact target; the op without its overload; for `.default` the one stanza that names
        the op; then the out-of-place op of an in-place one (`add_` -> `add`, which then mutates its first
        parameter) and the functional op of an `out=` form (which then mutates `out`).
        """
        if self._version != user_rules.version:
            self._found.clear()
            self._version = user_rules.version
        try:
            return self._found[target]
        except KeyError:
            found = self._found[target] = self._search(canonical_target(target))
            return found

    def _get(self, target: str) -> Rule | None:
        return user_rules.rules.get(target) or self.rules.get(target)

    def _direct(self, namespace: str, op: str, overload: str) -> Rule | None:
        names = [f"{namespace}.{op}.{overload}", f"{namespace}.{op}"] if overload else [f"{namespace}.{op}"]
        if overload in ("", "default"):
            names.append(f"{namespace}.{op}.default")
        return next((rule for rule in map(self._get, names) if rule is not None), None)

    def _search(self, target: str) -> Rule | None:
        exact = self._get(target)
        if exact is not None:
            return exact
        namespace, _, rest = target.partition(".")
        op, _, overload = rest.partition(".")
        if not op:
            return None
        if overload == "out" or overload.endswith("_out"):
            functional = overload.removesuffix("out").removesuffix("_")
            for name in (functional,) if functional else ("default", "Tensor", "self", "int"):
                base = self._direct(namespace, op, name)
                if base is not None:
                    return _as_out(base, target)
        found = self._direct(namespace, op, overload)
        if found is None and op.endswith("_") and not op.endswith("__"):
            base = self._direct(namespace, op[:-1], overload)
            if base is not None and base.params:
                written = base.params[0].name
                return attrs.evolve(base, target=target, mutates=(written,), outdtypes=(written,))
        return found


def _as_out(base: Rule, target: str) -> Rule:
    params = base.params
    if all(param.name != "out" for param in params):
        params = (*params, Param("out", None, required=False))
    return attrs.evolve(base, target=target, params=params, mutates=(*base.mutates, "out"))


@lru_cache(maxsize=1)
def _builtin_rules() -> Mapping[str, Rule]:
    from layoutcheck.resources import rules_dir

    return _load_folder(rules_dir() / "ops")


def _load_folder(folder: Path) -> dict[str, Rule]:
    if not folder.is_dir():
        raise InputError("there is no such rule folder", where=str(folder))
    rules: dict[str, Rule] = {}
    for path in sorted(folder.glob("*.rules")):
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"the rule file cannot be read: {error}", where=str(path)) from None
        for rule in parse(text, str(path)):
            if rule.target in rules:
                raise InputError(
                    f"{rule.target} has a rule already, at {rules[rule.target].source}", where=rule.source
                )
            rules[rule.target] = rule
    return rules


def suggestion(target: str, n_tensor_inputs: int, shapes: Sequence[Sequence[object] | None] = ()) -> str:
    """A stanza to paste for an op without a rule, as text that `parse` takes.

    `shapes` are the shapes of the tensor inputs, as far as they are known. The stanza is on the safe side:
    every axis that the shapes say nothing about is marked `!`, so that it must be whole.
    """
    name = canonical_target(target)
    if "." not in name:
        name = f"custom.{name}"
    name = name.removesuffix(".default")
    params = ["x", "w", "b"][:n_tensor_inputs]
    params += [f"x{i}" for i in range(3, n_tensor_inputs)]
    known = [None if shape is None else list(shape) for shape in shapes]
    inputs = known[:n_tensor_inputs] + [None] * (n_tensor_inputs - len(known))
    head = f"{name}({', '.join(params)})\n"
    first = inputs[0] if inputs else None
    if len(inputs) > 1 and first is not None and all(shape == first for shape in inputs):
        return head + "    elementwise\n"
    if len(inputs) == 2 and first and inputs[1] and len(inputs[1]) == 2 and first[-1] == inputs[1][0]:
        return head + "    x: t.. k, w: k n -> t.. n\n    linear x\n    weight w\n"
    operands, outputs = [], "x.."
    for i, (param, shape) in enumerate(zip(params, inputs)):
        rank = max(1, len(shape)) if shape is not None else 1
        labels = " ".join(f"{param}_{axis}!" for axis in range(rank - 1 if i == 0 else rank))
        if i == 0:
            outputs = " ".join(["t..", *(f"{param}_{axis}" for axis in range(rank - 1))])
            labels = f"t.. {labels}".strip()
        operands.append(f"{param}: {labels}")
    if not operands:
        return head + "    -> ()\n"
    return head + f"    {', '.join(operands)} -> {outputs}\n"
