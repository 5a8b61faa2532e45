"""Looks at a program that nothing outside can tell of."""

from __future__ import annotations

import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch import Tensor, nn

from pyro_implicit import HyperNetworkGuide, fit
from pyro_implicit.handlers.looks.unseen_run import unseen_run


class _Program:
    """Draws, moves statistics and warns."""

    def __init__(self) -> None:
        self.norm = nn.BatchNorm1d(2)

    def __call__(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        pyro.module("norm", self.norm)
        pyro.param("offset", lambda: torch.randn(()))
        warnings.warn("of the program", UserWarning, stacklevel=2)
        slopes = pyro.sample("slopes", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        with pyro.plate("rows", len(x)):
            return pyro.sample("y", dist.Normal(self.norm(x) @ slopes, 1.0), obs=y)


@pytest.mark.parametrize("evaluates", [False, True])
def test_nothing_outside_can_tell(evaluates: bool) -> None:
    program, x = _Program(), torch.randn(8, 2)
    before = torch.get_rng_state()
    with poutine.trace() as capture, unseen_run(evaluates=evaluates):
        assert program.norm.training
        first = program(x)
        was_training = program.norm.training
    with unseen_run(evaluates=evaluates):
        assert torch.equal(program(x), first)  # the same numbers at each look
    assert not capture.trace.nodes and not list(pyro.get_param_store().keys())
    assert torch.equal(torch.get_rng_state(), before)
    assert was_training is not evaluates and program.norm.training
    assert program.norm.num_batches_tracked == 0
    assert torch.equal(program.norm.running_mean, torch.zeros(2))


def test_warnings_are_shown_where_it_says_so() -> None:
    with pytest.warns(UserWarning, match="of the program"), unseen_run(warns=True):
        _Program()(torch.randn(8, 2))


@pytest.mark.filterwarnings("ignore:of the program")
def test_looks_of_a_fit_move_no_statistics() -> None:
    program, x, y = _Program(), torch.randn(8, 2), torch.randn(8)
    guide = HyperNetworkGuide(program)
    guide.setup(x, y)
    assert program.norm.num_batches_tracked == 0
    fit(program, guide, x, y, num_steps=3, progress=False, seed=0)
    assert program.norm.num_batches_tracked == 3  # its steps'


@pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr"])
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_sparse_buffers_are_no_statistics(layout: str) -> None:
    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("adjacency", getattr(torch.eye(3), layout)())

        def forward(self, x: Tensor) -> Tensor:
            return self.adjacency @ x

    graph, x = Graph(), torch.randn(3, 2)
    with unseen_run():
        assert torch.equal(graph(x), x)


@pytest.mark.parametrize("batches", [False, True])
def test_the_seed_of_a_fit_decides_where_parameters_begin(batches: bool) -> None:
    x, y = torch.randn(8), torch.randn(8)

    def model(x: Tensor, y: Tensor | None = None) -> Tensor:
        offset = pyro.param("offset", lambda: torch.randn(3))
        slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", 8, subsample_size=len(x)):
            return pyro.sample("y", dist.Normal(slope * x + offset.sum(), 1.0), obs=y)

    def start(seed: int) -> Tensor:
        pyro.clear_param_store()
        guide = HyperNetworkGuide(model, init_from=None)
        given = {"batches": [(x[:4], y[:4]), (x[4:], y[4:])]} if batches else {}
        args = () if batches else (x, y)
        fit(model, guide, *args, seed=seed, num_steps=1, lr=1e-9, progress=False, **given)
        return pyro.param("offset").detach().clone()

    assert torch.equal(start(0), start(0))
    assert not torch.allclose(start(0), start(1), atol=1e-3)
