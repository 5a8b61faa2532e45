"""The watch against folds: what it tells, what it leaves alone, and that it never cries wolf."""

from __future__ import annotations

import copy
import gc
import pickle
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from pyro_implicit import (
    ConditionalHyperNetworkGuide,
    HyperNetworkGuide,
    ImplicitDistribution,
    LanczosELBO,
    LinearisedELBO,
)
from pyro_implicit.distributions import sample_implicit
from pyro_implicit.exceptions import ArgumentError
from pyro_implicit.generators import (
    Generator,
    MLPGenerator,
    ModuleGenerator,
    ResidualGenerator,
)
from pyro_implicit.generators.bijective import BijectiveGenerator
from pyro_implicit.training.why_not_recorded import why_not_recorded
from tests.turns import in_turns

FOLDS = "the generator folds"
KINDS = [LinearisedELBO, LanczosELBO]


class Bent(Generator):
    """Its first output is ``z - a tanh(z)``, which folds for ``a > 1``; the others are ``z``."""

    full_rank = True

    def __init__(self, size: int = 2, depth: float = 3.0) -> None:
        super().__init__((size,), size)
        self.depth = nn.Parameter(torch.tensor(depth))
        self.looks = 0

    def forward(self, z: Tensor) -> Tensor:
        return torch.cat([z[..., :1] - self.depth * torch.tanh(z[..., :1]), z[..., 1:]], -1)

    def det_sign(self, z: Tensor, scale: float | Tensor = 0.0) -> Tensor:
        self.looks += 1
        return super().det_sign(z, scale)


def model() -> None:
    pyro.sample("theta", dist.Normal(torch.zeros(2), 1.0).to_event(1))


def guide_of(generator: Generator, **options: Any) -> Callable[[], None]:
    def guide() -> None:
        sample_implicit("theta", ImplicitDistribution(generator, **options))

    return guide


def steps(objective: Any, guide: Any, count: int, model: Any = model, *args: Any) -> None:
    for _ in range(count):
        objective.loss_and_grads(model, guide, *args)


# ---- what it tells


@pytest.mark.long
@pytest.mark.parametrize(("draws", "kind"), in_turns([(8, True), (8, False), (1, False)], KINDS))
def test_a_fold_is_told_once_for_each_site_and_guide(kind: Any, draws: tuple[int, bool]) -> None:
    particles, vectorised = draws
    objective = kind(particles, vectorize_particles=vectorised, watch_folds=2)
    for _ in range(2):
        guide = guide_of(Bent())
        with pytest.warns(UserWarning, match=FOLDS) as caught:
            steps(objective, guide, 12)
        (text,) = [str(one.message) for one in caught if FOLDS in str(one.message)]
        for advice in ("'theta'", "rarer side", "AutoregressiveGenerator", "SemiImplicitELBO"):
            assert advice in text
        assert "exceed the evidence" in text and "watch_folds=0" in text


def test_the_share_is_that_of_the_noises() -> None:
    with pytest.warns(UserWarning, match=FOLDS) as caught:
        steps(LinearisedELBO(4000, vectorize_particles=True, watch_folds=1), guide_of(Bent()), 1)
    # 1 - 3 / cosh(z)^2 is negative for |z| < acosh(sqrt 3) = 1.146
    rarer = 2 * float(dist.Normal(0.0, 1.0).cdf(torch.tensor(-1.1462)))
    (text,) = [str(one.message) for one in caught if FOLDS in str(one.message)]
    share = float(text.split("noises (")[1].split("%")[0]) / 100
    assert share == pytest.approx(rarer, abs=0.03)


@pytest.mark.long
def test_rare_folds_are_not_worth_a_word() -> None:
    """A fold on far less than 1% of the mass adds less than a few hundredths of a nat."""

    class Tail(Bent):
        def forward(self, z: Tensor) -> Tensor:
            return z + 0 * self.depth - 2 * torch.relu(z - 3.1)

    objective = LinearisedELBO(400, vectorize_particles=True, watch_folds=1)
    torch.manual_seed(1)  # one seed of 200, 0 among them, begins with five such noises of 400
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        steps(objective, guide_of(Tail()), 30)


@pytest.mark.long
def test_looks_come_every_kth_training_step_and_never_elsewhere() -> None:
    generator = Bent(depth=0.5)
    guide = guide_of(generator)
    objective = LinearisedELBO(4, vectorize_particles=True, watch_folds=5)
    steps(objective, guide, 4)
    objective.loss(model, guide)
    objective.terms(model, guide)
    assert generator.looks == 0
    steps(objective, guide, 11)
    assert generator.looks == 3
    objective = LinearisedELBO(4, vectorize_particles=True, watch_folds=0)
    steps(objective, guide_of(generator), 20)
    assert generator.looks == 3


@pytest.mark.long
@pytest.mark.parametrize("depth", [3.0, 0.5])
def test_rows_of_the_data_are_compared_with_themselves(depth: float) -> None:
    """Orientations that differ between rows are no fold; a row that has both is one."""

    class ByRow(Generator):
        def __init__(self) -> None:
            super().__init__((2,), 1)
            self.weight = nn.Parameter(torch.tensor(depth))

        def forward(self, z: Tensor) -> Tensor:
            noise, sign = z[..., :1], z[..., 1:]
            return sign * (noise - self.weight * torch.tanh(noise))

    def local(x: Tensor) -> None:
        with pyro.plate("data", 6):
            pyro.sample("w", dist.Normal(0.0, 1.0))

    x = torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0, -1.0])[:, None]
    for vectorised in (True, False):
        guide = ConditionalHyperNetworkGuide(
            local, generator=ByRow(), scale=0.0, create_plates=_plate
        )
        objective = LinearisedELBO(4, vectorize_particles=vectorised, watch_folds=1)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            steps(objective, guide, 5, local, x)
        assert sum(FOLDS in str(one.message) for one in caught) == (depth > 1)


def _plate(x: Tensor) -> Any:
    return pyro.plate("data", 6)


def test_rows_that_cannot_fold_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does the watch keep steps with them from being recorded."""

    def local(x: Tensor) -> None:
        with pyro.plate("data", 6):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("x", dist.Normal(z, 1.0), obs=x)

    x, looks = torch.randn(6), []
    monkeypatch.setattr("pyro_implicit.objectives.checks.fold_watch._look", looks.append)
    for options, folds in (({}, False), ({"hidden_dims": (3,)}, True)):
        guide = ConditionalHyperNetworkGuide(local, **options).setup(x)
        assert guide.never_folds is not folds and not guide.is_bijective
        objective = LinearisedELBO(2, vectorize_particles=True, watch_folds=4)
        assert bool(why_not_recorded(objective, guide)) is folds
        if not folds:
            steps(objective, guide, 5, local, x)
    assert looks == []
    assert HyperNetworkGuide(model).setup().never_folds


# ---- what it leaves alone


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("particles", "vectorised"), [(3, True), (3, False), (1, False), (6, True)]
)
def test_losses_gradients_and_random_numbers_are_the_same_to_the_bit(
    kind: Any, particles: int, vectorised: bool
) -> None:
    found = []
    for every in (0, 1):
        torch.manual_seed(5)
        generator = MLPGenerator(2, 2, (6,), skip=True)
        objective = kind(particles, vectorize_particles=vectorised, watch_folds=every)
        torch.manual_seed(6)
        losses = [objective.loss_and_grads(model, guide_of(generator)) for _ in range(3)]
        found.append((losses, [p.grad for p in generator.parameters()], torch.get_rng_state()))
    (losses, grads, state), (same_losses, same_grads, same_state) = found
    assert losses == same_losses and torch.equal(state, same_state)
    assert all(torch.equal(a, b) for a, b in zip(grads, same_grads, strict=True))


def test_modes_and_buffers_stay() -> None:
    class Counted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.utils.parametrizations.spectral_norm(nn.Linear(2, 2))

        def forward(self, z: Tensor) -> Tensor:
            return z + 0.1 * self.layer(z)

    found = []
    for every in (0, 1):
        torch.manual_seed(1)
        guide = HyperNetworkGuide(model, generator=Counted(), noise_dim=2, scale=0.0).setup()
        steps(LinearisedELBO(3, vectorize_particles=True, watch_folds=every), guide, 3)
        assert all(part.training for part in guide.modules())
        found.append(dict(guide.named_buffers()))
    assert len(found[0]) > 2
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_kept_alive_or_saved(kind: Any) -> None:
    objective = kind(4, vectorize_particles=True, watch_folds=1)
    generator = Bent(depth=0.5)
    guide = guide_of(generator)
    steps(objective, guide, 2)
    for other in (copy.deepcopy(objective), pickle.loads(pickle.dumps(objective))):
        assert other.settings == objective.settings and other.state_dict().keys() <= {"turns"}
        with pytest.warns(UserWarning, match=FOLDS):
            steps(other, guide_of(Bent()), 5)
    alive = weakref.ref(generator)
    del generator, guide
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("kind", KINDS)
def test_the_argument(kind: Any) -> None:
    assert kind().settings["watch_folds"] == 100
    assert kind(watch_folds=7).watch_folds == 7
    for bad in (-1, 2.5, True, None):
        with pytest.raises(ArgumentError, match="watch_folds"):
            kind(watch_folds=bad)


# ---- no false alarms


def _bijections(seed: int, m: int) -> list[Generator]:
    torch.manual_seed(seed)
    linear = MLPGenerator(m, m, (5,), activation="identity", skip=True)
    flipped = MLPGenerator(m, m, (5,), activation="identity", skip=True)
    blocks = BijectiveGenerator(m, 5, num_blocks=2)
    # the same map, but not known to be one to one
    unknown = ResidualGenerator(m, 5, num_blocks=1)
    with torch.no_grad():
        for generator in (linear, flipped, blocks):
            for parameter in generator.parameters():
                parameter.add_(torch.randn_like(parameter))
        flipped.skip_diagonal[0] *= -1
        block: Any = unknown.blocks[0]
        norm = torch.linalg.matrix_norm(block.weight_in, 2)
        block.weight_out.normal_()
        block.weight_out.mul_(0.99 / norm / torch.linalg.matrix_norm(block.weight_out, 2))
    return [linear, flipped, blocks, unknown, Bent(m, 0.98)]


@pytest.mark.long
@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**20), st.integers(1, 5), st.sampled_from([0.0, 0.01, 0.3]))
def test_maps_that_do_not_fold_are_never_told_to(seed: int, m: int, scale: float) -> None:
    def standard() -> None:
        pyro.sample("theta", dist.Normal(torch.zeros(m), 1.0).to_event(1))

    for generator in _bijections(seed, m):
        objective = LinearisedELBO(16, vectorize_particles=True, watch_folds=1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            steps(objective, guide_of(generator, scale=scale), 3, standard)


def test_directions_lost_in_the_output_noise_do_not_count() -> None:
    class Dead(Bent):
        def forward(self, z: Tensor) -> Tensor:
            return torch.cat([1e-4 * z[..., :1].square() + 0 * self.depth, z[..., 1:]], -1)

    objective = LinearisedELBO(64, vectorize_particles=True, watch_folds=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        steps(objective, guide_of(Dead(), scale=0.01), 5)


@pytest.mark.parametrize("case", ["bijective", "more noises", "other noise"])
def test_where_it_cannot_be_told_it_is_not_looked_for(case: str) -> None:
    generator: Any = Bent()
    options: dict[str, Any] = {}
    if case == "bijective":
        generator.is_bijective = True
    elif case == "more noises":
        generator = MLPGenerator(3, 2, (6,))
        options["scale"] = 0.1
    else:
        options["base_dist"] = dist.Uniform(-torch.ones(2), 1.0).to_event(1)
    objective = LinearisedELBO(8, vectorize_particles=True, watch_folds=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        steps(objective, guide_of(generator, **options), 5)


class _Lost(nn.Module):
    """Two outputs along one line."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(2, 1, bias=False), nn.Linear(1, 2, bias=False)

    def forward(self, z: Tensor) -> Tensor:
        out: Tensor = self.out(self.into(z))
        return out


def test_a_jacobian_that_has_not_full_rank_is_told_once() -> None:
    torch.manual_seed(0)
    generator = ModuleGenerator(_Lost(), (2,), 2)
    objective = LinearisedELBO(2, watch_folds=2)
    with pytest.warns(UserWarning, match=r"'theta'.*singular, up to rounding.*scale=0\.01"):
        steps(objective, guide_of(generator), 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        steps(objective, guide_of(generator), 4)
        steps(LinearisedELBO(2, watch_folds=2), guide_of(generator, scale=0.05), 4)
        steps(LinearisedELBO(2, watch_folds=0), guide_of(generator), 4)
