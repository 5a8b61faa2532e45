"""The table of *Vectorise*: what it says to write vectorises, what it replaces does not."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor

from pyro_implicit import HyperNetworkGuide
from pyro_implicit.training.fitting.default_objective import default_objective
from tests.docs.pages import DOCS

PAGE = DOCS / "howto" / "vectorise.md"
ROWS = 7  # of data, another number than those of latents and draws
#: what a form of the table is to be used as for a mean of each row, by what it makes
USES = {
    "torch.stack": lambda value, x: (value * x[:, :2]).sum(-1),
    r"None\] \* m": lambda value, x: (x * value.sum(-1)).sum(-1),
    "m": lambda value, x: value.sum(-1),
}


def table() -> list[tuple[list[str], list[str]]]:
    """The forms to be replaced and those to write, of each line."""
    text = PAGE.read_text().split("| Instead of | write |\n| --- | --- |\n", 1)[1]
    lines = re.findall(r"^\|(.*)\|(.*)\|$", text.split("\n\n", 1)[0], re.MULTILINE)
    return [(_forms(left), _forms(right)) for left, right in lines]


def _forms(cell: str) -> list[str]:
    """Code of a cell that is more than a name."""
    return [code for code in re.findall(r"`([^`]+)`", cell) if not code.isidentifier()]


def model_of(form: str) -> Callable[..., Any]:
    """A model whose mean of each row is made by a form of the table."""
    use = next((use for name, use in USES.items() if re.search(rf"\b{name}\b", form)), None)

    def model(x: Tensor, y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        m = pyro.sample("m", dist.Normal(torch.zeros(3, 2), 1.0).to_event(2))
        a, b = (pyro.sample(name, dist.Normal(0.0, 1.0)) for name in "ab")
        scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
        f = x[:, :1] * w[..., :1]
        names = {"x": x, "w": w, "m": m, "a": a, "b": b, "scale": scale, "f": f, "torch": torch}
        mean = eval(form, names)
        with pyro.plate("data", ROWS):
            pyro.sample("y", dist.Normal(mean if use is None else use(mean, x), 1.0), obs=y)

    return model


def is_vectorised(form: str) -> bool:
    """Whether ``fit`` would make all draws of this model at once."""
    pyro.set_rng_seed(0)
    model = model_of(form)
    guide = HyperNetworkGuide(model, init_from=None)
    objective, hints = default_objective(
        model, guide, (torch.randn(ROWS, 3), torch.randn(ROWS)), {}
    )
    assert bool(hints) == (objective.vectorize_particles is False)  # neither in a plate nor mapped
    # `x @ w.unsqueeze(-1)` has a column for each row, which no plate declares, for one draw too
    assert bool(hints) == (" if " in form or form == "x @ w.unsqueeze(-1)")
    return bool(objective.vectorised)


def test_table_is_found() -> None:
    assert len(table()) >= 7
    assert all(left and right for left, right in table())


@pytest.mark.parametrize("form", [form for _, right in table() for form in right])
def test_what_is_to_be_written_vectorises(form: str) -> None:
    assert is_vectorised(form)


@pytest.mark.parametrize("form", [form for left, _ in table() for form in left])
def test_what_is_to_be_replaced_does_not(form: str) -> None:
    assert not is_vectorised(form)


def test_the_form_that_was_advised_before_is_refused() -> None:
    assert not is_vectorised("(x @ w.unsqueeze(-1)).squeeze(-1)")
