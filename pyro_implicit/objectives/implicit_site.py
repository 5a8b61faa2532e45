"""One implicit site of a guide, with its draws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pyro_implicit._checks import (
    check_callable,
    check_count,
    check_instance,
    check_names,
    check_text,
)
from pyro_implicit.distributions._base_dist import draw
from pyro_implicit.distributions.implicit import ImplicitDistribution
from pyro_implicit.exceptions import ArgumentError

__all__ = ["ImplicitSite"]


@dataclass(frozen=True)
class ImplicitSite:
    """
    One implicit site of a guide, with its draws: all that the hook of an objective sees.

    :param str name: its name.
    :param ImplicitDistribution distribution: the distribution of its value given the noise;
        ``distribution.noise`` has shape ``(*batch, *noise_shape)``.
    :param torch.Tensor value: its draws, shape ``(*batch, m)``. With vectorised particles ``batch``
        begins with the particles; with looped particles only if the objective is joint.
    :param latents: the model's sites made from it.
    :param pack: maps values of these to the coordinates of ``value``; None if they are the same.
    :param prior: for an objective that replaces the KL term: a function from a number ``n`` to
        draws of the model's prior in the coordinates of ``value``, shape ``(n, *plates, m)``.
    :raises ArgumentError: for anything else.
    """

    name: str
    distribution: ImplicitDistribution
    value: Tensor
    latents: tuple[str, ...]
    pack: Callable[[dict[str, Tensor], int], Tensor] | None = None
    prior: Callable[[int], Tensor] | None = None

    def __post_init__(self) -> None:
        check_text("name", self.name, "the name of a site")
        check_instance("distribution", self.distribution, ImplicitDistribution, "that of the site")
        # its numbers are for draw_particle to judge, which blames the generator: looking at them
        # waits for the device, at every step
        check_instance("value", self.value, Tensor, "the site's draws")
        if not self.value.is_floating_point():
            raise ArgumentError(
                f"value is of type {self.value.dtype}; expected the site's draws, real numbers."
            )
        check_names("latents", self.latents)
        for name in ("pack", "prior"):
            function = getattr(self, name)
            if function is not None:
                check_callable(name, function, "a function, or None")

    @classmethod
    def of_node(cls, node: Any) -> ImplicitSite:
        """
        Reads a site off a trace of the guide, where its parts have been checked.

        :param dict node: one that :func:`~pyro_implicit.distributions.sample_implicit` made.
        :returns: the site, with no prior yet.
        :raises ArgumentError: if its value is no tensor.
        """
        infer, value = node["infer"], node["value"]
        if not isinstance(value, Tensor):
            check_instance("value", value, Tensor, "the site's draws")
        parts = {
            "name": node["name"],
            "distribution": node["fn"],
            "value": value,
            "latents": tuple(infer["implicit_latents"]),
            "pack": infer.get("implicit_pack"),
            "prior": None,
        }
        return _unchecked(parts)

    @property
    def noise(self) -> Tensor:
        """The noise of the draws, shape ``(*batch, *noise_shape)``."""
        return self.distribution.noise  # type: ignore[return-value]

    def first(self, count: int) -> ImplicitSite:
        """
        Keeps some of the draws.

        :param int count: a number of draws.
        :returns: the site with the first of its draws only.
        :raises ArgumentError: if it is no positive number.
        """
        count = check_count("count", count)
        return self.with_draws(self.distribution.given(self.noise[:count]), self.value[:count])

    def with_draws(self, distribution: ImplicitDistribution, value: Tensor) -> ImplicitSite:
        """
        The site with other draws; nothing is checked again.

        :param ImplicitDistribution distribution: the site's given other noise.
        :param torch.Tensor value: draws of it, shape ``(*batch, m)``.
        :returns: the site with these draws.
        """
        return _unchecked(vars(self) | {"distribution": distribution, "value": value})

    def means(self, num: int) -> Tensor:
        """
        Conditional means at fresh noise: the centres of the mixture that the site is.

        :param int num: their number.
        :returns: ``g(z)`` in the coordinates of ``value``, shape ``(num, *plates, m)``.
        :raises ArgumentError: if it is no positive number.
        """
        return self.at_fresh_noise(check_count("num", num)).mean

    def fresh(self, num_samples: int) -> Tensor:
        """
        Draws anew from a site whose first batch dimension is the particles.

        The plates it is in are kept, and each draw has its own noise.

        :param int num_samples: their number ``n``.
        :returns: reparameterised draws, shape ``(n, *plates, m)``.
        :raises ArgumentError: if it is no positive number.
        """
        return self.at_fresh_noise(check_count("num_samples", num_samples)).rsample()

    def at_fresh_noise(self, num: int) -> ImplicitDistribution:
        """
        Conditions the site on new noise.

        :param int num: a number of noises.
        :returns: the site's distribution given new noise, ``batch_shape`` of ``(num, *plates)``.
        :raises ArgumentError: if it is no positive number.
        """
        num = check_count("num", num)
        fn, plates = self.distribution, self.value.shape[1:-1]
        return fn.given(draw(fn.base_dist.expand(plates), (num,)))


def _unchecked(parts: dict[str, Any]) -> ImplicitSite:
    """A site of parts that have been looked at already: one is made for each draw of a step."""
    site = object.__new__(ImplicitSite)
    vars(site).update(parts)
    return site
