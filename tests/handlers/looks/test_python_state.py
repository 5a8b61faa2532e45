"""Whatever a model reads, and finds in the place of it one day, is seen without running it."""

from __future__ import annotations

import functools
import os
import sys
import types
import weakref
from array import array
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from os import getenv
from typing import Any, ClassVar

import numpy as np
import pandas
import pyro.distributions as dist
import pytest
import torch
from pyro import plate, poutine, sample
from pyro.nn import PyroModule, PyroSample
from torch import Tensor, nn

from pyro_implicit.handlers.looks import python_state as state_module
from pyro_implicit.handlers.looks.python_look import Look
from pyro_implicit.handlers.looks.python_state import python_state

TABLE: dict[str, Any] = {"inner": {"beta": 1.0}}


class Base:
    """What a model inherits."""

    beta = 1.0
    table: ClassVar = {"beta": 1.0}

    def __call__(self) -> float:
        return float(TABLE["inner"]["beta"])


class Model(Base):
    """A model that reads at every place."""

    def __call__(self) -> float:
        own = self.beta * self.table["beta"] * self.level * self.of_nobody() * self.of_class()
        return float(super().__call__() * own * self.shift())

    @property
    def level(self) -> float:
        return float(TABLE["level"])

    @staticmethod
    def of_nobody() -> float:
        return float(TABLE["static"])

    @classmethod
    def of_class(cls) -> float:
        return float(cls.weight)

    weight = 1.0

    def shift(self) -> float:
        return float(TABLE["shift"])


class Layered(nn.Module):
    """A user's network."""

    def __init__(self) -> None:
        super().__init__()
        self._own, self.scales = {"beta": 1.0}, [1.0]
        self.layers = nn.Sequential(nn.Identity(), nn.Identity())
        self.hook: Any = self.layers[0].register_forward_hook(lambda *_: None)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x) * self._own["beta"] * self.scales[0]
        return y

    def swap_hook(self) -> None:
        self.hook.remove()
        self.hook = self.layers[0].register_forward_hook(lambda *_: None)


class Prior(PyroModule):
    """A network of Pyro, with a prior."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = PyroSample(dist.Normal(0.0, 1.0))

    def forward(self) -> Tensor:
        weight: Tensor = self.weight
        return weight


class Slotted:
    __slots__ = ("__beta",)

    def __init__(self) -> None:
        self.set(1.0)

    def set(self, beta: float) -> None:
        self.__beta = beta

    def __call__(self) -> float:
        return self.__beta


def decorated() -> Callable[[], float]:
    held = {"beta": 1.0}

    def plain(beta: float = 1.0) -> float:
        return beta

    @functools.wraps(plain)
    def wrapper() -> float:
        return plain(held["beta"])

    wrapper.held = held  # type: ignore[attr-defined]
    return wrapper


class Options:
    """What a user's settings are."""

    scale = 1.0

    def __init__(self) -> None:
        self.power, self.inner = 1.0, types.SimpleNamespace(level=1.0)

    def scaled(self) -> float:
        return self.scale * float(TABLE["shift"])


def doubled() -> float:
    return 2.0 * float(TABLE["shift"])


settings: Any = types.ModuleType("settings")
ARRAY = np.ones(3)
CONTEXT: ContextVar[float] = ContextVar("CONTEXT", default=1.0)


def reads_settings() -> float:
    options = settings.options
    return float(options.power * options.scale * options.inner.level)


def calls_settings() -> float:
    return float(settings.options.scaled() * settings.doubled() * settings.Options.scale)


def reads_numbers() -> float:
    return float(ARRAY[0]) + settings.array[0] + CONTEXT.get()


def reads_environment() -> str:
    return os.environ["BETA"]


def asks_environment() -> str | None:
    return os.getenv("BETA")


def asks_plainly() -> str | None:
    return getenv("BETA")


class Meta(type):
    """A class of classes."""

    @property
    def level(cls) -> float:
        return float(TABLE["level"])


class Inherits(Options, metaclass=Meta):
    """What it reads is its base's."""

    @classmethod
    def doubled(cls) -> float:
        return 2.0 * cls.scale


class Reader:
    """A descriptor."""

    def __get__(self, instance: Any, owner: Any) -> float:
        return float(TABLE["level"])


class Implicit:
    """Whose code no name calls."""

    described = Reader()

    def __getitem__(self, key: str) -> float:
        return float(TABLE["shift"])

    def __getattr__(self, name: str) -> float:
        if name != "anything":
            raise AttributeError(name)
        return float(TABLE["static"])

    def __add__(self, other: float) -> float:
        return other + float(TABLE["inner"]["beta"])


implicit = Implicit()
DEEP: dict[str, Any] = {"x": {"y": [{"z": 1.0}]}}


def reads_inherited() -> float:
    return Inherits.scale + Inherits.doubled() + Inherits.level


def reads_implicitly() -> Any:
    return implicit["a"] + implicit.anything + (implicit + 1.0) + implicit.described


def reads_default(first: float = 1.0, *, other: float = 1.0) -> float:
    return first + other


def reads_other(first: float = 1.0, *, other: float = 1.0) -> float:
    return first - other


def local_class() -> Callable[[], float]:
    class Local:
        beta = 1.0

        @classmethod
        def read(cls) -> float:
            return cls.beta

    behind = Options()
    reference = weakref.ref(behind)

    def model() -> float:
        found: Any = reference()
        return Local.read() + reads_default() + float(found.power)

    model.held, model.behind = Local, behind  # type: ignore[attr-defined]
    return model


def reads_itself() -> float:
    return float(reads_itself.level)  # type: ignore[attr-defined]


def imports() -> float:
    import settings_of_a_test  # type: ignore[import-not-found]

    return float(settings_of_a_test.level) * sys.modules["settings_of_a_test"].other


CODE = reads_default.__code__
VIEW = types.MappingProxyType(TABLE)
LONG = dict.fromkeys(range(200), 1.0)
LONG_VIEW = types.MappingProxyType(LONG)
BYTES, NUMBERS = bytearray(b"1"), array("d", [1.0])


def reads_views() -> float:
    return float(VIEW["level"]) + BYTES[0] + NUMBERS[0] + LONG_VIEW[7]


def reads_texts() -> float:
    return float(getattr(settings.options, "power") * globals()["DEEP"]["x"]["y"][0]["z"])  # noqa: B009


def _environment(value: str | None) -> None:
    if value is None:
        os.environ.pop("BETA", None)
    else:
        os.environ["BETA"] = value


NAMED: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "object of a module": (
        lambda: reads_settings,
        lambda m: setattr(settings.options, "power", 2.0),
    ),
    "class of an object": (lambda: reads_settings, lambda m: setattr(Options, "scale", 2.0)),
    "own in the place of the class's": (
        lambda: reads_settings,
        lambda m: setattr(settings.options, "scale", 2.0),
    ),
    "object of an object": (
        lambda: reads_settings,
        lambda m: setattr(settings.options.inner, "level", 2.0),
    ),
    "another object": (lambda: reads_settings, lambda m: setattr(settings, "options", Options())),
    "method": (lambda: calls_settings, lambda m: TABLE.update(shift=2.0)),
    "function of a module": (
        lambda: calls_settings,
        lambda m: setattr(settings, "doubled", reads_settings),
    ),
    "class of a module": (lambda: calls_settings, lambda m: setattr(Options, "scale", 2.0)),
    "inherited": (lambda: reads_inherited, lambda m: setattr(Options, "scale", 2.0)),
    "hides what is inherited": (
        lambda: reads_inherited,
        lambda m: setattr(Inherits, "scale", 2.0),
    ),
    "class of a class": (lambda: reads_inherited, lambda m: TABLE.update(level=2.0)),
    "entry by code": (lambda: reads_implicitly, lambda m: TABLE.update(shift=2.0)),
    "attribute by code": (lambda: reads_implicitly, lambda m: TABLE.update(static=2.0)),
    "operator": (lambda: reads_implicitly, lambda m: TABLE["inner"].update(beta=2.0)),
    "descriptor": (lambda: reads_implicitly, lambda m: TABLE.update(level=2.0)),
    "class in a closure": (local_class, lambda m: setattr(m.held, "beta", 2.0)),
    "default": (local_class, lambda m: setattr(reads_default, "__defaults__", (2.0,))),
    "default of a keyword": (
        local_class,
        lambda m: setattr(reads_default, "__kwdefaults__", {"other": 2.0}),
    ),
    "code": (local_class, lambda m: setattr(reads_default, "__code__", reads_other.__code__)),
    "behind a weak reference": (local_class, lambda m: setattr(m.behind, "power", 2.0)),
    "attribute of a function": (
        lambda: reads_itself,
        lambda m: setattr(reads_itself, "level", 2.0),
    ),
    "imported within": (
        lambda: imports,
        lambda m: setattr(sys.modules["settings_of_a_test"], "level", 2.0),
    ),
    "found among the modules": (
        lambda: imports,
        lambda m: setattr(sys.modules["settings_of_a_test"], "other", 2.0),
    ),
    "view": (lambda: reads_views, lambda m: TABLE.update(level=2.0)),
    "long view": (lambda: reads_views, lambda m: LONG.update({7: 2.0})),
    "bytes": (lambda: reads_views, lambda m: BYTES.__setitem__(0, 2)),
    "array of Python": (lambda: reads_views, lambda m: NUMBERS.__setitem__(0, 2.0)),
    "name in a text": (lambda: reads_texts, lambda m: setattr(settings.options, "power", 2.0)),
    "global in a text, deep": (
        lambda: reads_texts,
        lambda m: DEEP["x"]["y"][0].update(z=2.0),
    ),
    "array": (lambda: reads_numbers, lambda m: ARRAY.__setitem__(0, 2.0)),
    "array of a module": (lambda: reads_numbers, lambda m: settings.array.__setitem__(0, 2.0)),
    "context": (lambda: reads_numbers, lambda m: CONTEXT.set(2.0)),
    "environment": (lambda: reads_environment, lambda m: _environment("2")),
    "environment, a variable less": (lambda: reads_environment, lambda m: _environment(None)),
    "environment by a function": (lambda: asks_environment, lambda m: _environment("2")),
    "environment by a global": (lambda: asks_plainly, lambda m: _environment("2")),
}
CHANGES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "class": (Model, lambda m: setattr(Base, "beta", 2.0)),
    "class between": (Model, lambda m: setattr(Model, "beta", 2.0)),
    "object": (Model, lambda m: setattr(m, "beta", 2.0)),
    "method of an object": (lambda: Model().__call__, lambda m: setattr(Model, "weight", 2.0)),
    "table of a class": (Model, lambda m: Base.table.update(beta=2.0)),
    "code of a base": (Model, lambda m: TABLE["inner"].update(beta=2.0)),
    "property": (Model, lambda m: TABLE.update(level=2.0)),
    "static method": (Model, lambda m: TABLE.update(static=2.0)),
    "class method": (Model, lambda m: setattr(Model, "weight", 2.0)),
    "helper": (Model, lambda m: TABLE.update(shift=2.0)),
    "other code": (Model, lambda m: setattr(Model, "shift", lambda self: 2.0)),
    "private": (Layered, lambda m: m._own.update(beta=2.0)),
    "list": (Layered, lambda m: m.scales.__setitem__(0, 2.0)),
    "made by Pyro": (lambda: PyroModule[Layered](), lambda m: m.scales.__setitem__(0, 2.0)),
    "prior": (Prior, lambda m: setattr(m, "weight", PyroSample(dist.Normal(0.0, 2.0)))),
    "layer": (Layered, lambda m: m.layers.__setitem__(1, nn.Tanh())),
    "one more layer": (Layered, lambda m: m.layers.append(nn.Tanh())),
    "hook": (Layered, lambda m: m.layers[1].register_forward_hook(lambda *_: None)),
    "hook before": (Layered, lambda m: m.layers[1].register_forward_pre_hook(lambda *_: None)),
    "backward hook": (
        Layered,
        lambda m: m.layers[1].register_full_backward_hook(lambda *_: None),
    ),
    "another hook": (Layered, Layered.swap_hook),
    "forward of a layer": (Layered, lambda m: setattr(m.layers[0], "forward", torch.tanh)),
    "slot": (Slotted, lambda m: m.set(2.0)),
    "decorator": (decorated, lambda m: m.held.update(beta=2.0)),
    **NAMED,
}


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    """Everything as it was at first, and again afterwards."""
    before = {kind: dict(vars(kind)) for kind in (Base, Model, Options, Inherits)}
    DEEP["x"]["y"][0]["z"] = 1.0
    settings.options, settings.doubled, settings.Options = Options(), doubled, Options
    settings.array, ARRAY[0] = np.ones(2), 1.0
    CONTEXT.set(1.0)
    _environment("1")
    found: Any = types.ModuleType("settings_of_a_test")
    found.level = found.other = 1.0
    reads_default.__defaults__, reads_default.__kwdefaults__ = (1.0,), {"other": 1.0}
    reads_default.__code__ = CODE
    LONG[7] = 1.0
    reads_itself.level, BYTES[0], NUMBERS[0] = 1.0, 1, 1.0  # type: ignore[attr-defined]
    sys.modules["settings_of_a_test"] = found
    TABLE.update(inner={"beta": 1.0}, level=1.0, static=1.0, shift=1.0)
    yield
    for kind, held in before.items():
        for name in vars(kind).keys() - held.keys():
            delattr(kind, name)
        for name in ("beta", "weight", "shift", "scale"):
            if name in held:
                setattr(kind, name, held[name])
    Base.table["beta"] = 1.0
    _environment(None)
    del sys.modules["settings_of_a_test"]


@pytest.mark.parametrize("kind", CHANGES)
def test_what_is_replaced_is_seen(kind: str) -> None:
    make, change = CHANGES[kind]
    model = make()
    state = python_state(model)
    assert not state.replaced()
    assert not state.changes(python_state(model))
    change(model)
    assert state.replaced()


class Refusing:
    """An object whose attributes run code that fails."""

    __slots__ = ("unset",)

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __call__(self) -> None:
        return None


def test_what_cannot_be_looked_at_counts_as_changed() -> None:
    model = Refusing()
    one, other = python_state(model), python_state(model)
    assert one.changes(other) == "what cannot be looked at"


@pytest.mark.long
def test_more_than_can_be_looked_at_each_time_counts_as_changed() -> None:
    table = [[[float(k) for k in range(50)] for _ in range(50)] for _ in range(50)]
    one, other = (python_state(lambda: table[0][0][0]) for _ in range(2))
    assert one.changes(other) == "more than can be looked at each time"
    assert len(one.places) == len(other.places) == 10_000


@pytest.mark.long
def test_a_model_of_a_large_library_is_given_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of a table's methods lead through all of it, which had taken five seconds a look."""
    table, looks = pandas.DataFrame({"a": [1.0, 2.0]}), []

    def model() -> float:
        return float(table["a"].iloc[0])

    class Counted(Look):
        def __init__(self, names: Any = ()) -> None:
            super().__init__(names)
            looks.append(self)

    monkeypatch.setattr(state_module, "Look", Counted)
    one, other = (python_state(model) for _ in range(2))
    assert one.changes(other) == "more than can be looked at each time"
    assert sum(len(look.places) == 10_000 for look in looks) == 2


def test_a_method_without_code_is_no_error() -> None:
    model = types.MethodType(functools.partial(lambda self: None), Model())
    one, other = python_state(model), python_state(model)
    assert not one.changes(other) and not one.replaced()


def test_what_pyro_keeps_is_none_of_a_model() -> None:
    def model() -> None:
        with plate("rows", 3):
            sample("x", dist.Normal(0.0, 1.0))

    before = python_state(model)
    with poutine.trace():  # as SVI is around each step, another one each time
        assert not before.replaced() and not before.changes(python_state(model))
