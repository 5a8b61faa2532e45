"""Posteriors of the weights of an image classifier, each as members that predict."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyro
import torch
import torch.nn.functional as F
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.common import stopwatch
from benchmarks.networks import LeNet
from benchmarks.shared.image_fits import ImageFits
from benchmarks.shared.image_scores import Members
from benchmarks.shared.images import GUIDES, NoEntropy, classifier
from benchmarks.shared.judged_images import Images
from benchmarks.shared.swag import PathMoments
from pyro_implicit import LanczosELBO, SingularValueELBO

__all__ = ["METHODS", "OBJECTIVES", "SETTINGS", "Fits", "by_weights", "with_dropout"]

SETTINGS: dict[str, Any] = {
    "batch_size": 256,
    "lr": 2e-3,
    "guide_lr": 0.06,
    "start_epochs": 1,
    "guide": "B",
    "init_scale": 0.05,
    "scale": 0.01,
    "mean_field_scale": 0.01,
    "num_particles": 2,
    "num_draws": 16,
    "num_modes": 5,
    "dropout": 0.2,
    "swag_lr": 0.01,
    "swag_epochs": 1,
    "swag_places": 40,
    "swag_rank": 20,
}
OBJECTIVES: dict[str, Callable[..., Any]] = {
    "control": NoEntropy,
    "singular-value": partial(SingularValueELBO, num_iterations=5),
    "lanczos": partial(LanczosELBO, num_steps=5),
}
METHODS = ("map", "ensemble", "dropout", "swag", "laplace", "mean-field", *OBJECTIVES)
Weights = Mapping[str, Tensor]


class Fits(ImageFits):
    """
    Fits on the same images with one seed.

    :param Images images: to train on.
    :param int seed: of all fits.
    :param float epochs: of each.
    :param bool quiet: no progress bars.
    :param make: the network.
    :param settings: as :data:`SETTINGS`.
    """

    def __init__(
        self,
        images: Images,
        seed: int,
        epochs: float,
        quiet: bool,
        make: Callable[[], nn.Module] = LeNet,
        settings: Mapping[str, Any] = SETTINGS,
    ) -> None:
        super().__init__(images.x, images.y, settings["batch_size"], quiet)
        self.seed, self.epochs = seed, epochs
        self.make, self.settings = make, settings
        self._kept: dict[Any, tuple[nn.Module, float]] = {}
        #: CPU seconds of what was found before, and is used again
        self.borrowed = 0.0

    def fit(self, method: str) -> Members:
        """
        :param str method: one of :data:`METHODS`.
        :returns: members; ``borrowed`` then says what was fitted before.
        """
        self.borrowed = 0.0
        if method in OBJECTIVES or method == "mean-field":
            return self._guide(method)
        return getattr(self, f"_{method}")()

    def start(self) -> nn.Module:
        """A copy of the network at which all guides begin."""
        return self._found(0, self.settings["start_epochs"])

    def _found(self, member: int, epochs: float) -> nn.Module:
        """A copy of the mode that is sought from a start of its own."""
        if (member, epochs) not in self._kept:
            with stopwatch() as watch:
                pyro.set_rng_seed(self.seed + 1000 * member)
                net = self.to_mode(self.make(), epochs, self.settings["lr"])
            self._kept[member, epochs] = net, watch.cpu_seconds
        else:
            self.borrowed += self._kept[member, epochs][1]
        return copy.deepcopy(self._kept[member, epochs][0])

    def _mode(self, member: int = 0) -> nn.Module:
        return self._found(member, self.epochs)

    def _map(self) -> Members:
        return self._by_weights([dict(self._mode().named_parameters())])

    def _ensemble(self) -> Members:
        modes = [self._mode(member) for member in range(self.settings["num_modes"])]
        return self._by_weights([dict(net.named_parameters()) for net in modes])

    def _dropout(self) -> Members:
        net = with_dropout(self.make(), self.settings["dropout"])
        net = self.to_mode(net, self.epochs, self.settings["lr"])
        count = self.settings["num_draws"]
        return torch.no_grad()(lambda x: torch.stack([net(x).softmax(-1) for _ in range(count)]))

    def _swag(self) -> Members:
        net = self._mode()
        moments = PathMoments(self.settings["swag_rank"]).see_all(self._path(net))
        draws = []
        for _ in range(self.settings["num_draws"]):
            vector_to_parameters(moments.draw(), net.parameters())
            draws.append({name: value.detach().clone() for name, value in net.named_parameters()})
        return self._by_weights(draws)

    def _path(self, net: nn.Module) -> Iterator[Tensor]:
        """Places of stochastic gradient descent from a mode, at a constant rate."""
        adam = torch.optim.SGD(net.parameters(), lr=self.settings["swag_lr"], momentum=0.9)
        every = max(self.steps(self.settings["swag_epochs"]) // self.settings["swag_places"], 1)
        for number, (x, y, _) in enumerate(self.batches(self.settings["swag_epochs"], "swag"), 1):
            adam.zero_grad()
            prior = parameters_to_vector(net.parameters()).square().sum() / (2 * len(self.x))
            (F.cross_entropy(net(x), y) + prior).backward()
            adam.step()
            if number % every == 0 or number == 1:
                yield parameters_to_vector(net.parameters()).detach().clone()

    def _laplace(self) -> Members:
        from laplace import Laplace

        found: Any = Laplace(
            self._mode(), "classification", subset_of_weights="last_layer", hessian_structure="full"
        )
        found.fit(DataLoader(TensorDataset(self.x, self.y), batch_size=self.settings["batch_size"]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of what is not asked for
            found.optimize_prior_precision("glm", method="marglik", prior_structure="scalar")
        draws = {"pred_type": "glm", "n_samples": self.settings["num_draws"]}
        return torch.no_grad()(lambda x: found.predictive_samples(x, **draws))

    def _guide(self, method: str) -> Members:
        model, net = classifier(self.start(), len(self.x))
        pyro.set_rng_seed(self.seed)
        start = net.init_to_module
        if method == "mean-field":
            scale = self.settings["mean_field_scale"]
            guide: Any = AutoNormal(model, init_loc_fn=start, init_scale=scale)
            elbo: Any = Trace_ELBO(self.settings["num_particles"])
        else:
            noise = {name: self.settings[name] for name in ("init_scale", "scale")}
            guide = GUIDES[self.settings["guide"]](model, init_loc_fn=start, **noise)
            elbo = OBJECTIVES[method](self.settings["num_particles"])
        lr = self.settings["guide_lr"]
        if method == "mean-field":
            lr = self.settings.get("mean_field_lr", self.settings["lr"])
        self.train_guide(model, guide, elbo, epochs=self.epochs, lr=lr, name=method)
        with torch.no_grad():
            draws = [dict(guide()) for _ in range(self.settings["num_draws"])]
        return self._by_weights(draws)

    def _by_weights(self, draws: Sequence[Weights]) -> Members:
        return by_weights(self.make(), draws)


def with_dropout(net: nn.Module, rate: float) -> nn.Module:
    """
    Features are left out at random before each dense layer, in training and after it.

    :param net: the network, which is changed.
    :param float rate: how many.
    """
    for layer in net.modules():
        if isinstance(layer, nn.Linear):
            layer.register_forward_pre_hook(lambda _, inputs: F.dropout(inputs[0], rate))
    return net


def by_weights(net: nn.Module, draws: Sequence[Weights]) -> Members:
    """
    :param net: the network.
    :param draws: its weights by name, of each member.
    """

    @torch.no_grad()
    def probabilities(x: Tensor) -> Tensor:
        return torch.stack([functional_call(net, dict(w), (x,)).softmax(-1) for w in draws])

    return probabilities
