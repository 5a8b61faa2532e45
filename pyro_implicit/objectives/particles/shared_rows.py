"""The same minibatch for all particles of one evaluation."""

from __future__ import annotations

from typing import Any

import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyro_implicit.exceptions import SiteError

__all__ = ["SharedRows"]


class SharedRows(Messenger):
    """
    Lets all particles of one evaluation see the same rows.

    Particles that are reduced together must: the mean over draws of the likelihood of one datum is
    no mean if each draw is shown another datum. The first particle lets the plates choose; all
    later ones get what they chose. Wrap guide and model of each in turn.

    :raises SiteError: if the model itself gives a plate other rows in a later particle.
    """

    def __init__(self) -> None:
        super().__init__()
        self._rows: dict[str, Tensor] = {}
        self._before: dict[str, Tensor] = {}

    def __enter__(self) -> Any:
        self._before = dict(self._rows)
        return super().__enter__()

    def _pyro_sample(self, msg: Any) -> None:
        rows = self._before.get(msg["name"]) if site_is_subsample(msg) else None
        if rows is None:
            return
        given = msg["value"]
        if given is None:
            size = msg["fn"].subsample_size
            if size is not None and size == len(rows):
                msg["value"], msg["done"] = rows, True
        elif given is not rows and not _equal(given, rows):
            raise SiteError(
                f"plate {msg['name']!r} shows each particle other rows, so that the mean over "
                "particles of the likelihood of a datum would mix data. Let the plate choose them "
                "(subsample_size=..., and index the data by what `with pyro.plate(...) as rows` "
                "returns), choose them before the loss is called, or write "
                "vectorize_particles=True."
            )

    def _pyro_post_sample(self, msg: Any) -> None:
        if site_is_subsample(msg) and msg["value"] is not None:
            self._rows.setdefault(msg["name"], msg["value"])


def _equal(given: Any, rows: Any) -> bool:
    a, b = torch.as_tensor(given), torch.as_tensor(rows)
    return a.shape == b.shape and bool((a == b.to(a.device)).all())
