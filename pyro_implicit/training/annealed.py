"""A number that goes from one value to another over the steps of training."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pyro_implicit._checks import check_choice
from pyro_implicit.training.schedules import geometric_schedule, linear_schedule

__all__ = ["Annealed"]


class Annealed(nn.Module):
    r"""
    A positive number that is annealed from ``start`` to ``end`` over ``num_steps`` steps.

    It may be the scale of a likelihood, for one. The step is a buffer: it is saved and resumed with
    its model's ``state_dict``, and follows ``.to(...)``. (With Lightning,
    :class:`~pyro_implicit.training.lightning.anneal.Anneal` does the same to any attribute.)

    A narrow likelihood makes objectives that take the logarithm of a mean over draws slow and
    ragged at first, when hardly any draw explains a datum; begin with a wide one::

        scale = Annealed(1.0, 0.1, num_steps=1000)

        def model(x, y=None):
            ...
            return pyro.sample("y", dist.Laplace(f, scale()), obs=y)

        for _ in range(2000):
            svi.step(x, y)
            scale.step()

    :param float start: the first value, positive.
    :param float end: the last value, positive.
    :param int num_steps: calls of :meth:`step` from the first to the last.
    :param str kind: ``"geometric"`` (equal ratios) or ``"linear"`` (equal differences).
    :raises ArgumentError: for values outside of these.
    """

    num_taken: Tensor

    def __init__(
        self, start: float, end: float, num_steps: int, *, kind: str = "geometric"
    ) -> None:
        super().__init__()
        check_choice("kind", kind, ("geometric", "linear"))
        schedule = geometric_schedule(start, end, num_steps)  # which refuses what is not positive
        self._schedule = schedule if kind == "geometric" else linear_schedule(start, end, num_steps)
        self.start, self.end = float(start), float(end)
        self.num_steps, self.kind = int(num_steps), kind
        self.register_buffer("num_taken", torch.zeros((), dtype=torch.long))

    def forward(self) -> float:
        """
        The number as it is at the present step.

        :returns: the value now.
        """
        return self._schedule(int(self.num_taken))

    def step(self) -> float:
        """
        Takes one step.

        :returns: the value after it.
        """
        self.num_taken += 1
        value: float = self()
        return value

    def extra_repr(self) -> str:
        """Shows the arguments in ``repr``."""
        return f"{self.start}, {self.end}, num_steps={self.num_steps}, kind={self.kind!r}"
