"""Compiled steps are those of the recording to rounding, or are not taken."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI
from torch import Tensor

from pyro_implicit import HyperNetworkGuide, LinearisedELBO, SemiImplicitELBO, fit
from pyro_implicit.exceptions import ArgumentError, PerformanceHint
from pyro_implicit.generators import AutoregressiveGenerator
from pyro_implicit.training import RecordedObjective

DATA = torch.randn(4, generator=torch.Generator().manual_seed(0))


def simple(x: Tensor) -> None:
    with pyro.plate("rows", len(x)):
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        pyro.sample("x", dist.Normal(mean, 0.5), obs=x)


def small(size: int) -> AutoregressiveGenerator:
    return AutoregressiveGenerator(size, 4, num_blocks=1, num_steps=1)


def objective() -> LinearisedELBO:
    return LinearisedELBO(3, vectorize_particles=True)


def losses(loss: Any, num_steps: int = 12) -> list[float]:
    pyro.clear_param_store()
    pyro.set_rng_seed(1)
    guide = HyperNetworkGuide(simple, init_from=None, generator=small)
    svi = SVI(simple, guide, pyro.optim.Adam({"lr": 0.01}), loss)
    return [svi.step(DATA) for _ in range(num_steps)]


@pytest.fixture
def compile_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Any], Any]], None]:
    """In the place of torch's compiler: what makes other results of those of a graph."""
    for name in ("_MAX_RELATIVE_STEP_TIME", "_MAX_RELATIVE_COMPILED_TIME"):
        monkeypatch.setattr(f"pyro_implicit.training.recorded.{name}", 1e9)

    def put(change: Callable[[Any], Any]) -> None:
        def compiler(graph: Any, **_: Any) -> Any:
            torch.distributions.Distribution.set_default_validate_args(False)  # as torch's does
            return lambda *tensors: change(graph(*tensors))

        monkeypatch.setattr(torch, "compile", compiler)

    return put


def times(factor: float, which: int) -> Callable[[Any], Any]:
    return lambda found: [one * factor if i == which else one for i, one in enumerate(found)]


def test_what_differs_by_rounding_is_taken(compile_by: Any) -> None:
    compile_by(times(1 + 1e-5, 0))
    recorded = RecordedObjective(objective(), jit_compile=True)
    found, expected = losses(recorded), losses(objective())
    assert recorded.is_compiled
    assert found[:6] == expected[:6]  # warm-up and trials are the program's
    for one, other in zip(found[6:], expected[6:], strict=True):
        assert one != other and math.isclose(one, other, rel_tol=2e-5)
    assert torch.distributions.Distribution._validate_args  # type: ignore[attr-defined]


def _another_draw(found: Any) -> Any:
    torch.randn(1)
    return found


def _no_gradient(found: Any) -> Any:
    return [found[0], *(None for _ in found[1:])]


def _not_at_all(found: Any) -> Any:
    raise RuntimeError("no working C++ compiler\nand much more")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (times(1.01, 0), "its numbers differ by more than rounding"),
        (times(1.01, 1), "its numbers differ by more than rounding"),
        (times(math.nan, 1), "its numbers differ by more than rounding"),
        (_another_draw, "it draws other random numbers"),
        (_no_gradient, "it has other gradients"),
        (_not_at_all, "RuntimeError: no working C"),
        (lambda found: [one.double() for one in found], "its numbers differ"),
    ],
)
def test_what_differs_more_is_replayed_as_recorded(
    change: Any, reason: str, compile_by: Any
) -> None:
    compile_by(change)
    recorded = RecordedObjective(objective(), jit_compile=True)
    with pytest.warns(PerformanceHint, match=f"steps are recorded, and not compiled: {reason}"):
        found = losses(recorded)
    assert recorded.is_recorded and not recorded.is_compiled
    assert found == losses(objective())


def test_where_torch_has_no_compiler_steps_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiler(*_: Any, **__: Any) -> Any:
        raise RuntimeError("torch.compile is not supported on Python 3.99+")

    monkeypatch.setattr(torch, "compile", compiler)
    monkeypatch.setattr("pyro_implicit.training.recorded._MAX_RELATIVE_STEP_TIME", 1e9)
    recorded = RecordedObjective(objective(), jit_compile=True)
    with pytest.warns(PerformanceHint, match="not compiled: RuntimeError: torch.compile is not"):
        assert losses(recorded) == losses(objective())
    assert recorded.is_recorded


def test_without_hints_nothing_is_told(compile_by: Any) -> None:
    compile_by(_not_at_all)
    recorded = RecordedObjective(objective(), jit_compile=True, hints=False)
    assert losses(recorded) == losses(objective())


def test_what_is_no_faster_is_replayed_as_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiler(graph: Any, **_: Any) -> Any:
        def slow(*tensors: Tensor) -> Any:
            time.sleep(0.05)
            return graph(*tensors)

        return slow

    monkeypatch.setattr(torch, "compile", compiler)
    monkeypatch.setattr("pyro_implicit.training.recorded._MAX_RELATIVE_STEP_TIME", 1e9)
    recorded = RecordedObjective(objective(), jit_compile=True)
    with pytest.warns(PerformanceHint, match="not compiled: compiled steps take as long"):
        assert losses(recorded) == losses(objective())


@pytest.mark.parametrize(
    ("options", "num_compiled"),
    [
        ({"objective": objective()}, 0),
        ({"objective": objective(), "jit_compile": True}, 8),
        ({"objective": RecordedObjective(objective(), jit_compile=True)}, 8),
        ({"objective": RecordedObjective(objective()), "jit_compile": True}, 8),
        ({"objective": RecordedObjective(objective())}, 0),
    ],
)
def test_fit_compiles_where_it_is_asked_to(
    options: dict[str, Any], num_compiled: int, compile_by: Any
) -> None:
    seen = []

    def noted(found: Any) -> Any:
        seen.append(1)
        return found

    compile_by(noted)
    found = []
    for some in (options, {"objective": objective()}):
        pyro.clear_param_store()
        guide = HyperNetworkGuide(simple, init_from=None, generator=small)
        found.append(fit(simple, guide, DATA, num_steps=12, seed=0, progress=False, **some))
    assert len(seen) == num_compiled
    assert found[0].history == found[1].history
    assert isinstance(found[0].objective, LinearisedELBO)


def test_fit_tells_where_nothing_is_compiled() -> None:
    guide = HyperNetworkGuide(simple, init_from=None, generator=small, scale=0.1)
    with pytest.warns(PerformanceHint, match="jit_compile=True, and steps are not compiled: only"):
        result = fit(
            simple,
            guide,
            DATA,
            objective=SemiImplicitELBO(2),
            num_steps=2,
            jit_compile=True,
            progress=False,
        )
    assert any("steps are not compiled" in text for text in result.warnings)


def test_a_flag_is_a_flag() -> None:
    with pytest.raises(ArgumentError, match="jit_compile"):
        RecordedObjective(objective(), jit_compile=1)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="jit_compile"):
        guide = HyperNetworkGuide(simple)
        fit(simple, guide, DATA, jit_compile="yes", progress=False)  # type: ignore[arg-type]


@pytest.mark.long
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
@pytest.mark.parametrize("path_gradient", [True, False])
def test_torchs_compiler_gives_the_numbers_of_the_program(
    path_gradient: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyro_implicit.training.recorded._MAX_RELATIVE_STEP_TIME", 1e9)
    monkeypatch.setattr("pyro_implicit.training.recorded._STEPS_BETWEEN_AUDITS", 5)
    options: dict[str, Any] = {"vectorize_particles": True, "path_gradient": path_gradient}
    recorded = RecordedObjective(LinearisedELBO(3, **options), jit_compile=True, hints=False)
    found, expected = losses(recorded, 30), losses(LinearisedELBO(3, **options), 30)
    assert recorded.is_recorded and recorded.reason == ""
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-4, atol=1e-4)
    assert torch.distributions.Distribution._validate_args  # type: ignore[attr-defined]


@pytest.mark.long
def test_as_many_fits_as_one_likes_are_compiled_in_a_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    num_compiled, compiler = [], torch.compile

    def backend(graph: Any, _: Any) -> Any:
        num_compiled.append(1)
        return graph.forward

    monkeypatch.setattr(torch, "compile", lambda run, **_: compiler(run, backend=backend))
    for name in ("_MAX_RELATIVE_STEP_TIME", "_MAX_RELATIVE_COMPILED_TIME"):
        monkeypatch.setattr(f"pyro_implicit.training.recorded.{name}", 1e9)
    for number in range(10):
        recorded = RecordedObjective(objective(), jit_compile=True)
        losses(recorded, 8)
        assert recorded.is_compiled and len(num_compiled) == number + 1
