"""The lines of a ledger as formulas, before any group size is known.

Everything that depends on sizes is a symbol, so that one list of templates serves every tp, dp, ep and rank.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from layoutcheck.errors import InputError
from layoutcheck.memory.engines import Engine, applies, load_engine, matches
from layoutcheck.memory.formula import product, substitute
from layoutcheck.memory.inventory import Weight, inventory
from layoutcheck.memory.parallel import Share, share, split_of
from layoutcheck.memory.plan import Plan
from layoutcheck.memory.quantisation import Quantisation
from layoutcheck.memory.schemes import FLOAT, Companion, Scheme
from layoutcheck.models import ModelConfig
from layoutcheck.units import DTYPE_BYTES

_QUANTISABLE = ("linear", "head", "router")


@dataclass(frozen=True, slots=True)
class Template:
    """A line without its number. ``per_layer`` is the bytes in one layer; ``count`` a formula."""

    category: str
    name: str
    tensors: tuple[str, ...]
    formula: str
    dtype: str
    shape: str
    count: str
    group: str
    divisor: str
    scheme: str = FLOAT
    state: str = "resident"
    note: str = ""
    per_layer: str = "0"


@dataclass(frozen=True)
class _Part:
    weight: Weight
    share: Share


@dataclass(frozen=True)
class _Module:
    """Parts that the engine holds as one module (or a single part), in layers of one scheme."""

    name: str
    parts: tuple[_Part, ...]
    layers: tuple[int, ...]
    scheme: Scheme
    note: str

    @property
    def first(self) -> Weight:
        return self.parts[0].weight


class Builder:
    """Writes the templates of one model under one plan (group sizes excepted)."""

    def __init__(self, config: ModelConfig, quantisation: Quantisation, plan: Plan, kv_repeats: bool) -> None:
        self.config = config
        self.quantisation = quantisation
        self.plan = plan
        self.kv_repeats = kv_repeats
        self.engine: Engine = load_engine(plan.engine)
        self.values = self.engine.values
        self.whole = self.engine.rules("whole", plan.modes, config) + [(p, "asked for") for p in plan.whole]
        self.float = self.engine.rules("float", plan.modes, config)
        self.uniform = quantisation.uniform and not any(re.search(r"\d", p) for p, _ in self.float)
        self.derived = self.engine.entries("derived", plan.modes, config) if plan.derived else []
        self.companions = plan.companions or str(self.values["companions"])
        self.mtp = bool(self.values.get("mtp")) if plan.mtp is None else plan.mtp
        self.notes: list[str] = []
        self._seen: set[str] = set()

    # ---- which modules there are -------------------------------------------------------------------

    def templates(self) -> list[Template]:
        """Return all lines of weights, companions, derived weights and buffers."""
        found: list[Template] = []
        for module in self._modules():
            found += self._module(module)
        found += self._buffers()
        for module_name in (*self.plan.distribute, *self.plan.gather):
            if module_name not in self._seen:
                raise InputError(f"the model has no module {module_name}")
        if self.mtp and self.config.mtp_layers:
            self._note("the MTP layers share embedding and head with the model")
        return found

    def _modules(self) -> Iterator[_Module]:
        groups: dict[tuple[str, str, tuple[int, ...]], list[Weight]] = {}
        for weight in inventory(self.config, mtp=self.mtp):
            parent, _, module = weight.path.rpartition(".")
            fused = self.engine.fused_into(module) if weight.kind in ("linear", "bias") else None
            name = f"{parent}.{fused}" if fused else weight.path
            groups.setdefault((name, weight.param, weight.layers), []).append(weight)
        for (name, _, layers), weights in groups.items():
            by_scheme: dict[tuple[Scheme, str], list[int]] = {}
            if self.uniform and layers:
                by_scheme[self._scheme(name, weights, layers[0])] = list(layers)
            else:
                for layer in layers or (-1,):
                    by_scheme.setdefault(self._scheme(name, weights, layer), []).append(layer)
            parts = tuple(_Part(weight, self._share(weight)) for weight in weights)
            for (scheme, note), where in by_scheme.items():
                yield _Module(name, parts, tuple(where) if layers else (), scheme, note)

    def _scheme(self, name: str, weights: Sequence[Weight], layer: int) -> tuple[Scheme, str]:
        """The scheme of a module in a layer; the parts of a fused module need one."""
        found: dict[str, tuple[Scheme, str]] = {}
        for weight in weights:
            path = weight.at(layer)
            if weight.kind not in _QUANTISABLE:
                found[path] = (Scheme(FLOAT), "")
                continue
            experts = self.config.experts
            paths = [weight.at(layer, e) for e in range(experts.count)] if weight.expert and experts else ()
            scheme = self.quantisation.scheme(path, paths)
            rule = matches(self.float, path)
            if rule is not None and scheme.name != FLOAT:
                self._note(f"{rule[0]} float, not {scheme.name}: {rule[1] or self.engine.name}")
                scheme = Scheme(FLOAT)
            found[path] = (scheme, rule[1] if rule else "")
        first_path, first = next(iter(found.items()))
        for path, other in found.items():
            if other[0] != first[0]:
                raise InputError(
                    f"{first_path} is {first[0]} and {path} is {other[0]}, but {self.engine.name} "
                    f"holds both as {name.rsplit('.', 1)[-1]}, which needs one type"
                )
        return first

    def _share(self, weight: Weight) -> Share:
        module = weight.module
        self._seen.add(module)
        split = split_of(module)
        if weight.path == "model.embed_tokens":
            split = "vocab" if (self.plan.embedding or self.values.get("embedding")) == "vocab" else "whole"
        if module not in self.plan.gather and not any(fnmatchcase(weight.path, p) for p in self.plan.divided):
            split = "whole" if matches(self.whole, weight.path) else split
        if module in self.plan.distribute:
            split = "whole"
        group = "etp" if weight.expert else "tp"
        return share(weight.out, weight.inp, split, group, self.kv_repeats)

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    # ---- the lines of a module ------------------------------------------------------------------------

    def _module(self, module: _Module) -> Iterator[Template]:
        derived = [d for d in self.derived if self._makes(d, module)]
        freed = {name for d in derived if d["original"] == "freed" for name in d.get("frees", ("*",))}
        if module.first.inp is None:
            yield self._vector(module)
            return
        for companion in module.scheme.companions(module.first.expert):
            gone = companion.name in freed or "*" in freed
            yield from self._companion(module, companion, "load" if gone else "resident")
        for entry in derived:
            yield self._derived(module, entry)

    @staticmethod
    def _makes(entry: Any, module: _Module) -> bool:
        """Whether a derived weight is made from a module: by its path, and its scheme where one is named."""
        wanted = entry.get("scheme", module.scheme.name)
        return fnmatchcase(module.first.path, entry["of"]) and bool(wanted == module.scheme.name)

    def _vector(self, module: _Module) -> Template:
        weight = module.first
        dtype = weight.dtype or self.config.dtype
        elements = "+".join(part.share.out for part in module.parts)
        one = product(elements, DTYPE_BYTES[dtype])
        count = str(len(module.layers) or 1)
        divided = module.parts[0].share
        category = "replicated" if divided.group == "replicated" else "tensor-parallel"
        return Template(
            category,
            f"{module.name}.{weight.param}",
            tuple(f"{p.weight.path}.{weight.param}" for p in module.parts),
            product(count, one),
            dtype,
            elements,
            count,
            divided.group,
            divided.divisor,
            per_layer=one,
        )

    def _companion(self, module: _Module, companion: Companion, state: str) -> Iterator[Template]:
        parts = [p for p in module.parts if not companion.modules or p.weight.module in companion.modules]
        if not parts:
            return
        scalars = self.companions == "scalars"
        if not companion.is_weight and (
            self.companions == "none" or (scalars and companion.when == "loaded")
        ):
            return
        elements = "1" if scalars and not companion.is_weight else companion.elements
        # what does not run over outputs is there once for the fused module
        if not re.search(r"\bout\b", elements):
            parts = parts[:1]
        params = {key: str(value) for key, value in module.scheme.params}
        texts = [
            substitute(elements, {"out": p.share.out, "in": p.share.inp or "1", **params}) for p in parts
        ]
        dtype = companion.dtype_in(self.config.dtype)
        weight = module.first
        divided = next((p.share for p in module.parts if p.share.group != "replicated"), parts[0].share)
        experts = "experts_here" if weight.expert else "1"
        one = product("+".join(texts), experts, DTYPE_BYTES[dtype])
        tensors = tuple(f"{p.weight.path}.{companion.name}" for p in parts)
        name = f"{module.name}.{companion.name}"
        if companion.when == "file":
            state = "load"
        category = self._category(weight, divided) if companion.is_weight else "companions"
        shape = " + ".join(
            f"[{p.share.out}, {p.share.inp}]" if companion.is_weight else text
            for p, text in zip(parts, texts)
        )
        count = str(len(module.layers) or 1)
        if companion.is_weight and weight.module in self.plan.distribute:
            yield from self._distributed(module, name, tensors, one, dtype, shape)
            return
        yield Template(
            category,
            name,
            tensors,
            product(count, one),
            dtype,
            shape,
            product(count, experts),
            "ep" if weight.expert else divided.group,
            product("ep", divided.divisor) if weight.expert else divided.divisor,
            str(module.scheme),
            state,
            module.note,
            one,
        )
        if companion.is_weight:
            yield from self._extra(module, name, one, dtype, parts)

    @staticmethod
    def _category(weight: Weight, divided: Share) -> str:
        if weight.expert:
            return "expert-parallel"
        return "replicated" if divided.group == "replicated" else "tensor-parallel"

    def _extra(
        self, module: _Module, name: str, one: str, dtype: str, parts: Sequence[_Part]
    ) -> Iterator[Template]:
        """Padding of the engine's weight format, and the buffer of a gathered weight."""
        padding = self.values.get("conversion", {}).get("padding", {}).get(dtype)
        experts = "experts_here" if module.first.expert else "1"
        count = str(len(module.layers) or 1)
        if padding and module.scheme.name != FLOAT:
            rows = "+".join(p.share.out for p in parts)
            width = parts[0].share.inp or "1"
            padded = f"pad({rows}, {padding['out']})*pad({width}, {padding['in']})-({rows})*({width})"
            yield Template(
                "buffers",
                f"{name} (format padding)",
                (),
                product(count, experts, padded, DTYPE_BYTES[dtype]),
                dtype,
                padded,
                count,
                "replicated",
                "1",
                note="the weight format pads rows and columns",
            )
        if module.first.module in self.plan.gather:
            entry = self.values.get("gathered", {"buffers": 1})
            weight = module.first
            whole = product(weight.out, weight.inp or "1", DTYPE_BYTES[dtype])
            yield Template(
                "buffers",
                f"{module.name} (gathered)",
                (name,),
                product(entry["buffers"], whole),
                dtype,
                f"[{weight.out}, {weight.inp}]",
                str(entry["buffers"]),
                "replicated",
                "1",
                note="the whole weight is gathered into this buffer, layer by layer",
            )

    def _distributed(
        self, module: _Module, name: str, tensors: tuple[str, ...], one: str, dtype: str, shape: str
    ) -> Iterator[Template]:
        """A weight whose layers are spread over the tp ranks: layer i is on rank i % tp."""
        entry: Any = self.values.get("distributed")
        if entry is None:
            raise InputError(f"{self.engine.name} does not distribute weights over layers")
        hidden = tuple(layer for layer in module.layers if layer < self.config.num_layers)
        if hidden != tuple(range(self.config.num_layers)):
            raise InputError(
                f"{module.name} is not alike in all layers, so it cannot be distributed over them"
            )
        here = "ceil(num_hidden_layers - tp_rank, tp)"
        scheme = str(module.scheme)
        yield Template(
            "layer-distributed",
            name,
            tensors,
            product(here, one),
            dtype,
            shape,
            here,
            "layers of tp",
            "tp",
            scheme,
            note="layer i lies on rank i % tp",
            per_layer=one,
        )
        yield Template(
            "buffers",
            f"{name} (window)",
            tensors,
            product(entry["window"], one),
            dtype,
            shape,
            str(entry["window"]),
            "replicated",
            "1",
            scheme,
            note="layers of other ranks arrive in these",
        )
        if extra := len(module.layers) - len(hidden):
            yield Template(
                "replicated",
                f"{name} (MTP)",
                tensors,
                product(extra, one),
                dtype,
                shape,
                str(extra),
                "replicated",
                "1",
                scheme,
                note="the MTP layers are not distributed",
                per_layer=one,
            )

    def _derived(self, module: _Module, entry: Any) -> Template:
        whole = module.parts[0].share.group == "replicated"
        heads = "num_attention_heads" if whole else "num_attention_heads/tp"
        elements = substitute(entry["elements"], {"heads_here": heads})
        dtype = self.config.dtype if entry["dtype"] == "model" else entry["dtype"]
        one = product(elements, DTYPE_BYTES[dtype])
        count = str(len(module.layers) or 1)
        return Template(
            "derived",
            f"{module.name.rsplit('.', 1)[0]}.{entry['name']}",
            (f"{module.name}.weight",),
            product(count, one),
            dtype,
            elements,
            count,
            "replicated" if whole else "tp",
            "1" if whole else "tp",
            note=f"from {module.first.module}, which is {entry['original']}",
            per_layer=one,
        )

    def _buffers(self) -> Iterator[Template]:
        for entry in self.values.get("buffers", ()):
            if not applies(entry, self.config):
                continue
            dtype = self.config.dtype if entry["dtype"] == "model" else entry["dtype"]
            formula = product(entry["elements"], DTYPE_BYTES[dtype])
            yield Template(
                "buffers", entry["name"], (), formula, dtype, entry["elements"], "1", "replicated", "1"
            )
