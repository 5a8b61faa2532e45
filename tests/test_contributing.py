"""CONTRIBUTING.md is followed to the letter: what it adds works as it stands."""

from __future__ import annotations

import math
import re
from functools import partial
from pathlib import Path
from typing import Any

import pyro
import pytest
import torch
from pyro.infer.autoguide import init_to_value

from pyro_implicit import HyperNetworkGuide, LinearisedELBO
from pyro_implicit.testing import check_generator, check_guide, check_objective
from tests.contract.registry import MODELS

TEXT = (Path(__file__).resolve().parents[1] / "CONTRIBUTING.md").read_text()
CASE = MODELS["regression"]


def section(title: str) -> dict[str, Any]:
    """What the code of a section defines."""
    _, _, rest = TEXT.partition(f"## {title}\n")
    (code,) = re.findall(r"```python\n(.*?)```", rest.partition("\n## ")[0], re.DOTALL)
    defined: dict[str, Any] = {"__name__": "contributing"}
    exec(compile(code, "CONTRIBUTING.md", "exec"), defined)
    return defined


def improves(model: Any, guide: Any, objective: Any, steps: int = 60) -> bool:
    """Whether a short fit lowers the loss, at the same noise before and after it."""
    x, y = CASE.data()
    guide.setup(x, y)
    optim = torch.optim.Adam(guide.parameters(), lr=0.002)

    def level() -> float:
        pyro.set_rng_seed(0)
        return sum(objective.loss(model, guide, x, y) for _ in range(10)) / 10

    before = level()
    for _ in range(steps):
        optim.zero_grad()
        assert math.isfinite(objective.loss_and_grads(model, guide, x, y))
        optim.step()
    return level() < before


@pytest.mark.long
def test_the_objective() -> None:
    model = CASE.make()
    objective = section("Adding an objective")["MaximumAPosteriori"](4, vectorize_particles=True)
    assert improves(model, HyperNetworkGuide(model, hidden_dims=(8,)), objective)


@pytest.mark.long
def test_the_generator_trains_and_is_saved_by_value() -> None:
    model = CASE.make()
    kind = section("Adding a generator")["ScaledNoise"]
    guide = HyperNetworkGuide(model, generator=kind)
    assert improves(model, guide, LinearisedELBO(16, vectorize_particles=True))
    z = torch.randn(3, guide.latent_dim)
    generator = guide.samplers[0].generator
    expected = generator.log_deviation.sum().expand(3)
    torch.testing.assert_close(generator.half_log_det(z), expected)
    again = HyperNetworkGuide.from_state_dict(guide.state_dict())
    torch.manual_seed(0)
    draws = guide.sample(3)
    torch.manual_seed(0)
    for name, value in again.sample(3).items():
        torch.testing.assert_close(value, draws[name])


@pytest.mark.long
def test_the_guide() -> None:
    model = CASE.make()
    guide = section("Adding a guide")["WideGuide"](model, init_loc_fn=_start)
    assert improves(model, guide, LinearisedELBO(16, vectorize_particles=True))


@pytest.mark.long
def test_the_checks() -> None:
    section("Checking what is written elsewhere")


@pytest.mark.long
def test_what_it_adds_passes_the_checks() -> None:
    check_generator(section("Adding a generator")["ScaledNoise"](3))
    one = {"regression": CASE}
    check_guide(partial(section("Adding a guide")["WideGuide"], init_loc_fn=_start), models=one)
    mode = partial(section("Adding an objective")["MaximumAPosteriori"], 2)
    check_objective(mode, models=one, minibatches=False)


_start = init_to_value(values={"scale": torch.tensor(0.5), "w": torch.zeros(2)})


@pytest.mark.parametrize("title", ["an objective", "a generator", "a guide"])
def test_what_it_names_exists(title: str) -> None:
    _, _, rest = TEXT.partition(f"## Adding {title}\n")
    root = Path(__file__).resolve().parents[1]
    for path in re.findall(r"`((?:tests|pyro_implicit)/[\w/.]+)`", rest.partition("\n## ")[0]):
        assert (root / path).exists(), path
