"""What every implicit guide must do: sites, traces, seeds, vectorised draws, saving."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

import pyro
import torch
from pyro import poutine
from torch.distributions import biject_to

from pyro_implicit.guides.base import ImplicitGuide
from pyro_implicit.testing.models import MODELS, Case
from pyro_implicit.testing.report import about, apart, expect

__all__ = [
    "check_draw",
    "check_guide",
    "check_replay",
    "check_sample",
    "check_saving",
    "check_seeds",
    "check_trace",
    "check_vectorised",
]


def check_guide(
    make_guide: Callable[..., ImplicitGuide],
    *,
    models: Mapping[str, Case] | None = None,
    seed: int = 0,
) -> None:
    """
    Checks a guide of one's own on small models.

    It draws every latent once, inside of its support and of the model's plates; a trace can be
    replayed; seeds, vectorised draws and saved states do what they should::

        check_guide(MyGuide)
        check_guide(partial(MyGuide, hidden_dims=(8,)), models={"mine": Case(...)})

    :param make_guide: makes a guide of a model, ``make_guide(model)``: the class, or a ``partial``.
    :param models: by name; :data:`~pyro_implicit.testing.MODELS` by default, whose latents may be
        outside of every plate, which a conditional guide does not serve.
    :param int seed: of the draws.
    :raises AssertionError: naming the model and what does not hold.
    """
    for name, case in (MODELS if models is None else models).items():
        with apart(seed), about(f"on model {name!r}"):
            for check in (check_draw, check_trace, check_replay, check_vectorised):
                check(make_guide(case.make()), case)
            for built in (check_sample, check_seeds):
                built(make_guide(case.make()).setup(*case.data()), case)
            check_saving(make_guide, case)


def check_draw(guide: ImplicitGuide, case: Case) -> None:
    """
    Checks that one call gives one constrained draw of each site.

    :param ImplicitGuide guide: a guide of ``case.make()``.
    :param Case case: the model and its data.
    :raises AssertionError: naming the site.
    """
    draw = guide(*case.data())
    found = {name: tuple(v.shape) for name, v in draw.items()}
    expect(found == case.sites, f"a call draws {found}; expected {case.sites}")
    trace = poutine.trace(guide).get_trace(*case.data())
    for site in guide.sites:
        node: Any = trace.nodes[site.name]
        for support in (site.support, node["fn"].support):
            expect(support.check(node["value"]).all(), f"{site.name!r} is outside of its support")


def check_trace(guide: ImplicitGuide, case: Case) -> None:
    """
    Checks that the model runs with a trace of the guide, in the same plates.

    :param ImplicitGuide guide: a guide of ``case.make()``.
    :param Case case: the model and its data.
    :raises AssertionError: naming the site.
    """
    data = case.data()
    guide_trace = poutine.trace(guide).get_trace(*data)
    model_trace = poutine.trace(poutine.replay(guide.model, trace=guide_trace)).get_trace(*data)
    model_trace.compute_log_prob()
    for name in case.sites:
        mine: Any = guide_trace.nodes[name]
        theirs: Any = model_trace.nodes[name]
        expect(mine["value"] is theirs["value"], f"the model does not take the draw of {name!r}")
        plates = [{f.name: (f.dim, f.size) for f in n["cond_indep_stack"]} for n in (mine, theirs)]
        expect(plates[0] == plates[1], f"{name!r} is in plates {plates[0]}; expected {plates[1]}")
        shapes = [tuple(n["fn"].batch_shape) for n in (mine, theirs)]
        expect(
            shapes[0] == shapes[1],
            f"{name!r} has batch shape {shapes[0]}; expected {shapes[1]}, as in the model",
        )


def check_replay(guide: ImplicitGuide, case: Case) -> None:
    """
    Checks that replaying a trace repeats the draw.

    :param ImplicitGuide guide: a guide of ``case.make()``.
    :param Case case: the model and its data.
    :raises AssertionError: naming the site.
    """
    data = case.data()
    trace: Any = poutine.trace(guide).get_trace(*data)
    with poutine.replay(trace=trace):
        again = guide(*data)
    for name, value in again.items():
        same = torch.equal(value, trace.nodes[name]["value"])
        expect(same, f"replaying a trace does not repeat the draw of {name!r}")


def check_sample(guide: ImplicitGuide, case: Case) -> None:
    """
    Checks that ``sample`` stacks different constrained draws without gradients.

    :param ImplicitGuide guide: a guide of ``case.make()`` that is set up.
    :param Case case: the model and its data.
    :raises AssertionError: naming the site.
    """
    draws = guide.sample(5)
    found = {name: tuple(v.shape) for name, v in draws.items()}
    expected = {name: (5, *shape) for name, shape in case.sites.items()}
    expect(found == expected, f"sample(5) has shapes {found}; expected {expected}")
    for site in guide.sites:
        value = draws[site.name]
        expect(site.support.check(value).all(), f"{site.name!r} is outside of its support")
        expect(not value.requires_grad, f"draws of {site.name!r} have gradients")
        expect(not torch.equal(value[0], value[1]), f"two draws of {site.name!r} are the same")
    numel = sum(biject_to(s.support).inv(draws[s.name][0]).numel() for s in guide.sites)
    expect(guide.latent_dim == numel, f"latent_dim is {guide.latent_dim}; expected {numel}")


def check_seeds(guide: ImplicitGuide, case: Case) -> None:
    """
    Checks that the same seed gives the same draws, and another seed others.

    :param ImplicitGuide guide: a guide of ``case.make()`` that is set up.
    :param Case case: the model and its data.
    :raises AssertionError: naming the site.
    """
    draws = [_seeded_draws(guide, seed, *case.data()) for seed in (3, 3, 4)]
    for name in case.sites:
        for one, same, other in zip(*draws, strict=True):
            expect(torch.equal(one[name], same[name]), f"one seed gives two draws of {name!r}")
            expect(not torch.equal(one[name], other[name]), f"two seeds give one draw of {name!r}")


def check_vectorised(guide: ImplicitGuide, case: Case) -> None:
    """
    Checks that a plate of particles draws each site with the particles in front.

    :param ImplicitGuide guide: a guide of ``case.make()``.
    :param Case case: the model and its data, in at most two plates.
    :raises AssertionError: naming the site.
    """
    with pyro.plate("particles", 3, dim=-3):
        draw = guide(*case.data())
    for name, shape in case.sites.items():
        event = next(s.event_dim for s in guide.sites if s.name == name)
        batch = (1, 1, *shape[: len(shape) - event])
        expected = (3, *batch[len(batch) - 2 :], *shape[len(shape) - event :])
        found = tuple(draw[name].shape)
        expect(found == expected, f"3 particles draw {name!r} as {found}; expected {expected}")
        expect(draw[name].std(0).min() > 0, f"all particles have the same {name!r}")


def check_saving(make_guide: Callable[..., ImplicitGuide], case: Case) -> None:
    """
    Checks that a saved state, read without running code, draws the same without model and data.

    :param make_guide: makes a guide of a model.
    :param Case case: the model and its data.
    :raises AssertionError: naming the site.
    """
    guide, data = make_guide(case.make()).setup(*case.data()), case.data()
    with torch.no_grad():
        for parameter in guide.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    file = io.BytesIO()
    torch.save(guide.state_dict(), file)
    file.seek(0)
    other = make_guide(_never_called)
    other.load_state_dict(torch.load(file, weights_only=True))
    mine, theirs = (_seeded_draws(g, 11, *data) for g in (guide, other))
    for one, same in zip(mine, theirs, strict=True):
        expect(one.keys() == same.keys(), f"saved {list(one)}, loaded {list(same)}")
        for name, value in one.items():
            expect(torch.equal(value, same[name]), f"the loaded guide draws another {name!r}")


def _seeded_draws(guide: ImplicitGuide, seed: int, *data: Any) -> tuple[dict[str, Any], ...]:
    pyro.set_rng_seed(seed)
    return guide(*data), guide.sample(3)


def _never_called(*args: Any, **kwargs: Any) -> None:
    raise AssertionError("loading a guide calls the model")
