"""Many tensors as one parameter: views, names, and states that have them one by one."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn

from pyro_implicit import HyperNetworkGuide
from pyro_implicit.exceptions import StateError
from pyro_implicit.generators import AutoregressiveGenerator, ConditionalAutoregressiveGenerator
from pyro_implicit.generators.packed import PackedModule, named_tensors, with_packed


class Pair(PackedModule):
    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Parameter(torch.ones(2))
        stack = torch.arange(6.0).reshape(2, 3)
        self._pack({"bias": torch.tensor([7.0, 8.0]), "layers.*.weight": stack})


def unpacked(module: nn.Module) -> dict[str, Any]:
    """A state as it was before tensors were packed."""
    state = dict(module.state_dict())
    for name, part in module.named_modules():
        if isinstance(part, PackedModule):
            begin = f"{name}." if name else ""
            del state[f"{begin}weights"]
            weights = part.named_weights().items()
            state |= {begin + own: tensor.detach().clone() for own, tensor in weights}
    return state


def model() -> None:
    pyro.sample("x", dist.Normal(0.0, 1.0))
    pyro.sample("tau", dist.LogNormal(0.0, 0.3))


def test_names_and_views() -> None:
    pair = Pair()
    assert [name for name, _ in pair.named_parameters()] == ["other", "weights"]
    found = named_tensors(nn.Sequential(pair))
    assert list(found) == ["0.bias", "0.layers.0.weight", "0.layers.1.weight", "0.other"]
    with torch.no_grad():
        found["0.layers.1.weight"][0] = 9.0
    assert pair.weights.tolist() == [7.0, 8.0, 0.0, 1.0, 2.0, 9.0, 4.0, 5.0]


@pytest.mark.parametrize("kind", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_have_tensors_of_their_own(kind: Any) -> None:
    generator = AutoregressiveGenerator(3)
    clone = kind(generator)
    with torch.no_grad():
        clone.shift.fill_(3.0)
    assert not generator.shift.any() and bool((clone.shift == 3).all())
    assert len(list(clone.parameters())) == 1
    assert clone.double().blocks[1].weight_in.dtype == torch.float64


@pytest.mark.parametrize(
    "make", [lambda: AutoregressiveGenerator(3), lambda: ConditionalAutoregressiveGenerator(2, 3)]
)
def test_a_state_with_tensors_one_by_one_is_loaded(make: Any) -> None:
    one, other = make(), make()
    state = unpacked(one)
    assert "blocks.2.weight_out" in state and "weights" not in state
    other.load_state_dict(state)
    for name, tensor in one.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor)
    assert with_packed(one, one.state_dict()).keys() == one.state_dict().keys()


@pytest.mark.parametrize("fault", ["absent", "shape", "number"])
def test_a_state_that_lacks_one_of_them_is_refused(fault: str) -> None:
    generator = AutoregressiveGenerator(3)
    state = unpacked(generator)
    if fault == "absent":
        del state["blocks.1.bias_in"]
    else:
        state["blocks.1.bias_in"] = torch.zeros(7) if fault == "shape" else 3.0
    with pytest.raises(RuntimeError, match=r"Missing key.*weights"):
        AutoregressiveGenerator(3).load_state_dict(state)


@pytest.mark.parametrize("is_built", [False, True])
def test_a_guide_loads_the_state_of_one_that_had_many_parameters(is_built: bool) -> None:
    guide = HyperNetworkGuide(model, init_from=None).setup()
    state = unpacked(guide)
    assert not any(name.endswith(".weights") for name in state)
    other = HyperNetworkGuide(model, init_from=None)
    if is_built:
        other.setup()
    other.load_state_dict(state)
    torch.manual_seed(0)
    expected = guide.sample(3)
    torch.manual_seed(0)
    for name, value in other.sample(3).items():
        assert torch.equal(value, expected[name])
    del state["_samplers.0.generator.blocks.0.bias_in"]
    with pytest.raises(StateError):
        HyperNetworkGuide(model, init_from=None).load_state_dict(state)


def test_the_guide_shows_pyro_one_parameter() -> None:
    guide = HyperNetworkGuide(model, init_from=None)
    guide()
    names = list(pyro.get_param_store().keys())
    assert names == ["HyperNetworkGuide.samplers.0.generator.weights"]
    stored: Tensor = pyro.param(names[0])
    assert stored is guide.samplers[0].generator.weights  # type: ignore[union-attr]
