"""Fingerprints of programs."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, partial

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import config_enumerate
from pyro.nn import PyroModule

from pyro_implicit.guides.program_print import print_of_program

SOURCE = """
def model(x, scale=1.0):
    at = pyro.sample("at", dist.Normal(0.0, {scale}))
    return [pyro.sample(name, dist.Normal(at, scale)) for name in {names}]
"""


def made(scale=2.0, names=("a", "b"), above=""):
    space = {"pyro": pyro, "dist": dist}
    exec(above + SOURCE.format(scale=scale, names=names), space)
    return space["model"]


def test_the_same_source_is_known_again_wherever_it_stands():
    assert print_of_program(made()) == print_of_program(made(above="import os\n\n\n"))


@pytest.mark.parametrize("change", [{"scale": 3.0}, {"names": ("a", "c")}])
def test_another_source_is_another_program(change):
    assert print_of_program(made()) != print_of_program(made(**change))


def _closing_over(value):
    def model(x):
        return x, value

    return model


def _by_default(value):
    def model(x, value=value):
        return x, value

    return model


def _by_name(value):
    def model(x, *, value=value):
        return x, value

    return model


FIRST, SECOND = _by_default(3), _by_default(4)


class _Holder:
    def __init__(self, value):
        self.value = value

    def model(self, x):
        return x, self.value


@pytest.mark.parametrize(
    ("value", "other"),
    [
        (1.5, 1.25),
        ((1.5, 25), (1.52, 5)),
        ((1, 23), (12, 3)),
        (frozenset("ab"), frozenset("ac")),
        (partial(max, 1), partial(max, 2)),
        (_by_default(1), _by_default(2)),
        (np.float32(1), np.float32(2)),
        (frozenset([("a", 1)]), frozenset([("b", 2)])),
        ((FIRST, FIRST, SECOND), (FIRST, SECOND, FIRST)),
        ((FIRST, SECOND, FIRST), (FIRST, SECOND, SECOND)),
        ((10**5000,), (10**5000 + 1,)),
    ],
)
def test_values_that_a_program_goes_by_are_part_of_it(value, other):
    for make in (_closing_over, _by_default, _by_name):
        assert print_of_program(make(value)) == print_of_program(make(value))
        assert print_of_program(make(value)) != print_of_program(make(other))


def test_switches_of_a_methods_object_are_part_of_it():
    methods = [_Holder(one).model for one in (True, True, False, "a")]
    first, again, *others = map(print_of_program, methods)
    assert first == again and first not in others


def test_what_a_run_changes_is_no_part_of_it():
    calls, known, itself = [0], {}, {}
    itself["self"] = itself

    def model(x):
        calls[0] += 1
        known[x] = calls[0], itself
        return x

    class Counting:
        count = 0

        def model(self, x):
            self.count += 1
            return x

        __call__ = model

    class CountingModule(PyroModule):
        rows = 0

        def forward(self, x):
            self.rows += 1
            return x

    number = 0

    def by_name(x):
        nonlocal number
        number += 1
        return x

    def inside(x):
        return by_name(x)

    def beside():
        calls_of_beside = 0

        def bump():
            nonlocal calls_of_beside
            calls_of_beside += 1

        def program(x):
            bump()
            return x, calls_of_beside

        return program

    class Decorated(PyroModule):
        rows = 0

        @torch.no_grad()
        def forward(self, x):
            self.note()
            return self.known

        def note(self):
            self.rows += 1

        @cached_property
        def known(self):
            return 3

    programs = (model, Counting().model, Counting(), CountingModule(), by_name, inside)
    for program in (*programs, beside(), Decorated()):
        before = print_of_program(program)
        program(1)
        assert print_of_program(program) == before is not None


def test_what_only_other_methods_write_is_part_of_it():
    class WithSetter:
        def __init__(self, trend):
            self.set_trend(trend)

        def set_trend(self, trend):
            self.trend = trend

        def __call__(self, x):
            return x + 1 if self.trend else x

    first, again, other = (print_of_program(WithSetter(one)) for one in (True, True, False))
    assert first == again != other


class _Kind(Enum):
    LEVEL = 1
    TREND = 2


@dataclass(frozen=True)
class _Config:
    trend: bool


@pytest.mark.parametrize(
    ("value", "other"),
    [
        (True, False),
        (("a",), ("a", "slope")),
        (_Kind.LEVEL, _Kind.TREND),
        (_Config(True), _Config(False)),
        (FIRST, SECOND),
    ],
)
def test_attributes_are_part_of_it_whatever_they_are_called(value, other):
    class Model(PyroModule):
        def __init__(self, value):
            super().__init__()
            self._value = value

        def forward(self, x):
            return x, self._value

    class Plain:
        def __init__(self, value):
            self._value = value

        def __call__(self, x):
            return x, self._value

    for kind in (Model, Plain):
        first, again, changed = (print_of_program(kind(one)) for one in (value, value, other))
        assert first == again != changed


def test_properties_and_parts_that_count_are_no_part_of_it():
    class Encoder(torch.nn.Module):
        calls = 0

        def encode(self, x):
            self.calls += 1
            return x

    class Model(PyroModule):
        def __init__(self):
            super().__init__()
            self.encoder, self._count = Encoder(), 0

        @property
        def seen(self):
            return self._count

        @seen.setter
        def seen(self, value):
            self._count = value

        def forward(self, x):
            self.seen = self.seen + 1
            return self.encoder.encode(x)

    program = Model()
    before = print_of_program(program)
    program(1)
    assert program.seen == program.encoder.calls == 1
    assert print_of_program(program) == before


def test_layers_of_another_kind_are_another_program():
    class Model(PyroModule):
        def __init__(self, layer):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return self.layer(x)

    tanh, again, sigmoid = (
        print_of_program(Model(one())) for one in (torch.nn.Tanh, torch.nn.Tanh, torch.nn.Sigmoid)
    )
    assert tanh == again != sigmoid


def test_values_without_an_end_have_no_print():
    deep = ()
    for _ in range(5000):
        deep = (deep,)
    itself = partial(max)
    itself.__setstate__((max, (itself,), {}, {}))
    for value in (deep, itself):
        assert print_of_program(_closing_over(value)) is None


def printed_by(program, seed):
    """What a process of its own prints, with this number for the hashes of texts."""
    environment = os.environ | {"PYTHONHASHSEED": seed}
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return run.stdout


def test_sets_have_one_print_in_each_process():
    """Texts are hashed by a number that each process draws."""
    program = (
        "from pyro_implicit.guides.program_print import print_of_program\n"
        "names = {'alpha', 'beta', 'gamma', 'delta'}\n"
        "def made(names):\n    return lambda x: x in names or x in {'one', 'two', 'three'}\n"
        "print(print_of_program(made(names)))"
    )
    found = {printed_by(program, seed) for seed in "12"}
    assert len(found) == 1


def test_what_neither_hides_nor_adds_sites_is_looked_through():
    model = made()
    for wrapped in (poutine.condition(model, data={}), config_enumerate(model)):
        assert print_of_program(wrapped) == print_of_program(model)


@pytest.mark.parametrize(
    "model", [poutine.block(made(), hide=["a"]), poutine.scale(made(), scale=2.0), print, len]
)
def test_what_is_within_a_handler_or_has_no_instructions_is_unknown(model):
    assert print_of_program(model) is None


def test_what_a_program_goes_by_is_part_of_it():
    class Model(PyroModule):
        def __init__(self, bias):
            super().__init__()
            self.bias = bias

        def forward(self, x):
            return x + 1 if self.bias else x

    assert print_of_program(Model(True)) == print_of_program(Model(True).eval())
    assert print_of_program(Model(True)) != print_of_program(Model(False))

    def closing_over(value):
        def model(x):
            return x + value if not callable(value) else value(x)

        return model

    assert print_of_program(closing_over(2)) == print_of_program(closing_over(2))
    assert print_of_program(closing_over(2)) != print_of_program(closing_over(3))
    wrapped = [closing_over(closing_over(n)) for n in (1, 2)]
    assert print_of_program(wrapped[0]) != print_of_program(wrapped[1])
    assert print_of_program(wrapped[0]) != print_of_program(closing_over(1))


def test_modules_and_objects_are_their_classes_programs():
    class Model(PyroModule):
        def forward(self, x):
            return x + 1

    class Callable:
        def __call__(self, x):
            return x + 2

        def method(self, x):
            return x + 3

    prints = [print_of_program(one) for one in (Model(), Callable(), Callable().method)]
    assert None not in prints and len(set(prints)) == 3
    assert print_of_program(Model()) == prints[0]
    assert print_of_program(torch.nn.Identity()) not in (None, *prints)


def test_members_of_enums_and_texts_have_one_print_in_each_process():
    program = (
        "import enum, functools\n"
        "from pyro_implicit.guides.program_print import print_of_program\n"
        "class Link(enum.Enum):\n"
        "    ID = functools.partial(max, 1.0)\n"
        "    LOG = frozenset({'one', 'two', 'three'})\n"
        "    OWN = object()\n"
        "class Name(str):\n    __repr__ = object.__repr__\n"
        "def made(*values):\n    return lambda x: (x, values)\n"
        "for values in (*((one,) for one in Link), (Name('a'),), (Name('b'),)):\n"
        "    print(print_of_program(made(*values)))"
    )
    found = [printed_by(program, seed) for seed in "12"]
    assert found[0] == found[1]
    assert len(set(found[0].split())) == 5


def test_a_docstring_is_no_part_of_it():
    def plain(x, name="a"):
        return [name, x]

    plain_print = print_of_program(plain)

    def plain(x, name="a"):
        """What it does."""
        return [name, x]

    assert print_of_program(plain) == plain_print

    def plain(x, name="b"):
        """What it does."""
        return [name, x]

    assert print_of_program(plain) != plain_print


def test_slots_are_part_of_it():
    @dataclass(frozen=True, slots=True)
    class Slotted:
        trend: bool

    first, again, other = (
        print_of_program(_closing_over(one))
        for one in (Slotted(True), Slotted(True), Slotted(False))
    )
    assert first == again != other
