"""Programs are known again, methods of one object too, and are not kept alive."""

from __future__ import annotations

import gc

from pyro_implicit._program_ref import ProgramRef


class Model:
    def run(self) -> None: ...

    def other(self) -> None: ...

    def __call__(self) -> None: ...


def test_a_program_is_known_again_and_others_are_not() -> None:
    one, two = Model(), Model()
    programs = [lambda: None, one, two, one.run, one.other, two.run]
    for number, program in enumerate(programs):
        ref = ProgramRef(program)
        again = one.run if program == one.run else program  # a new object at each look
        assert ref.is_of(again)
        assert not any(ref.is_of(p) for i, p in enumerate(programs) if i != number)


def test_a_program_is_not_kept_alive() -> None:
    model = Model()
    refs = [ProgramRef(model), ProgramRef(model.run)]
    assert all(ref() is not None for ref in refs)
    del model
    gc.collect()
    assert all(ref() is None for ref in refs)
    assert not any(ref.is_of(None) for ref in refs)


class Slotted:
    __slots__ = ()

    def run(self) -> None: ...


def test_what_cannot_be_referred_to_weakly_is_known_again_too() -> None:
    one, two = Slotted(), Slotted()
    ref = ProgramRef(one.run)
    assert ref.is_of(one.run) and not ref.is_of(two.run) and ref() == one.run
