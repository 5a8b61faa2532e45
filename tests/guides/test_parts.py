"""How latents are divided into independent parts."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyro import poutine
from torch import nn

from pyro_implicit import BayesianModule, HyperNetworkGuide
from pyro_implicit.exceptions import ArgumentError, SiteError
from pyro_implicit.guides.parts import divide, parts_of

NAMES = st.lists(st.text("ab.", min_size=1, max_size=4), min_size=1, max_size=8, unique=True)


@given(names=NAMES, kind=st.sampled_from([False, True, "layer", "first letter"]))
def test_every_site_is_in_one_part_and_parts_come_in_order(names, kind) -> None:
    parts = parts_of((lambda name: name[0]) if kind == "first letter" else kind, names)
    assert sorted(i for part in parts.values() for i in part) == list(range(len(names)))
    firsts = [part[0] for part in parts.values()]
    assert firsts == sorted(firsts)
    assert all(part == sorted(part) for part in parts.values())


def test_a_layer_is_what_its_parameters_are_named_after() -> None:
    names = ["sigma", "0.weight", "0.bias", "body.2.weight", "body.2.bias"]
    assert parts_of("layer", names) == {"sigma": [0], "0": [1, 2], "body.2": [3, 4]}
    assert parts_of(False, names) == {"": [0, 1, 2, 3, 4]}
    assert list(parts_of(True, names)) == names


def test_divide() -> None:
    assert divide("abcde", [2, 0, 3]) == [["a", "b"], [], ["c", "d", "e"]]


@pytest.mark.parametrize("factorized", ["layers", None, 3, ["a"]])
def test_other_divisions_are_refused(factorized) -> None:
    with pytest.raises(ArgumentError, match="factorized=.*'layer'"):
        HyperNetworkGuide(lambda: None, factorized=factorized)


def test_a_function_must_return_names() -> None:
    def model():
        pyro.sample("a", dist.Normal(torch.zeros(()), 1.0))

    with pytest.raises(ArgumentError, match=r"factorized\('a'\) returned 3"):
        HyperNetworkGuide(model, factorized=lambda name: 3).setup()


def interleaved():
    for name in ("x.a", "y.a", "x.b", "y.b"):
        pyro.sample(name, dist.LogNormal(torch.zeros(2), 1.0).to_event(1))


def test_parts_are_independent_and_within_them_all_depends() -> None:
    guide = HyperNetworkGuide(interleaved, factorized=lambda name: name[0], init_scale=0.5)
    guide.setup()
    assert [site.name for site in guide.sites] == ["x.a", "x.b", "y.a", "y.b"]
    prefix = f"_{guide._pyro_name}"
    nodes = poutine.trace(guide).get_trace().nodes
    flat = {name: nodes[name] for name in (f"{prefix}_x_latent", f"{prefix}_y_latent")}
    assert flat[f"{prefix}_x_latent"]["infer"]["implicit_latents"] == ("x.a", "x.b")
    u = flat[f"{prefix}_y_latent"]["value"]
    torch.testing.assert_close(nodes["y.a"]["value"], u[:2].exp())
    torch.testing.assert_close(nodes["y.b"]["value"], u[2:].exp())
    for z in (False, True):  # with the other's noise held, only its own latents change
        held = nodes[f"{prefix}_{'x' if z else 'y'}_latent_noise"]["value"]
        other = poutine.condition(guide, {f"{prefix}_{'x' if z else 'y'}_latent_noise": held})()
        part = "x" if z else "y"
        assert torch.equal(other[f"{part}.a"], nodes[f"{part}.a"]["value"])


@pytest.mark.long
def test_a_saved_division_comes_back() -> None:
    net = BayesianModule(
        nn.Sequential(nn.Linear(1, 3), nn.Tanh(), nn.Linear(3, 1)), dist.Normal(0, 1)
    )
    guide = HyperNetworkGuide(lambda: net(torch.zeros(4, 1)), factorized="layer").setup()
    assert [len(s.preconditioner.loc) for s in guide.samplers] == [6, 4]
    again = HyperNetworkGuide.from_state_dict(guide.state_dict())
    torch.manual_seed(0)
    drawn = guide.sample(5)
    torch.manual_seed(0)
    assert all(torch.equal(value, drawn[name]) for name, value in again.sample(5).items())


@pytest.mark.parametrize(
    ("factorized", "match"), [(True, "latents of part 'empty' have no"), (False, "latents have no")]
)
def test_a_part_without_numbers_is_refused(factorized: bool, match: str) -> None:
    def model() -> None:
        if factorized:
            pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.sample("empty", dist.Normal(torch.zeros(0), 1.0).to_event(1))

    guide = HyperNetworkGuide(model, factorized=factorized, init_from=None)
    with pytest.raises(SiteError, match=match):
        guide.setup()
