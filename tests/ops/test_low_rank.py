"""The low-rank density against torch's own; the posteriors are tested with ImplicitProcess."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from pyro_implicit.ops.low_rank import low_rank_log_prob


@given(
    n=st.integers(1, 8),
    rank=st.integers(1, 6),
    batch=st.sampled_from([(), (3,)]),
    sample=st.sampled_from([(), (2,)]),
)
def test_the_density_is_that_of_torch(
    n: int, rank: int, batch: tuple[int, ...], sample: tuple[int, ...]
) -> None:
    generator = torch.Generator().manual_seed(n + 10 * rank)
    options = {"generator": generator, "dtype": torch.float64}
    factor = torch.randn(*batch, n, rank, **options)
    diagonal = torch.rand(*batch, n, **options) + 0.1
    rest = torch.randn(*sample, *batch, n, **options)
    zero = torch.zeros(*batch, n, dtype=torch.float64)
    expected = torch.distributions.LowRankMultivariateNormal(zero, factor, diagonal)
    found = low_rank_log_prob(rest, factor, diagonal)
    torch.testing.assert_close(found, expected.log_prob(rest))


def test_its_derivatives() -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = ((5,), (5, 2), (5,))
    arguments = [
        torch.rand(*shape, generator=generator, dtype=torch.float64, requires_grad=True)
        for shape in shapes
    ]
    assert torch.autograd.gradcheck(low_rank_log_prob, arguments)
