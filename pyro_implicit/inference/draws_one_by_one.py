"""Draws of a guide for whoever needs one at a time."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pyro_implicit.guides.conditional_base import ConditionalGuide
from pyro_implicit.handlers.errors.explained_errors import explained_errors
from pyro_implicit.handlers.pointwise import latent_sites
from pyro_implicit.inference.evaluation.draw_chunks import DrawChunks
from pyro_implicit.inference.row_numbers import numbered_if_called, numbered_if_drawn

__all__ = ["DrawsOneByOne"]


class DrawsOneByOne:
    """
    The draws of a guide one after the other; of those that make many at once, made many at once.

    :param guide: any guide.
    :param tuple args: its positional arguments.
    :param dict kwargs: its keyword arguments.
    :param int num_samples: how many draws.
    :param int seed: of them.
    """

    def __init__(
        self, guide: Any, args: tuple[Any, ...], kwargs: dict[str, Any], num_samples: int, seed: int
    ) -> None:
        self.guide, self.args, self.kwargs = guide, args, kwargs
        at_once = callable(getattr(guide, "sample", None))
        by_row = isinstance(guide, ConditionalGuide)  # whose draws are of the rows of a call
        self._chunks: DrawChunks | None = None
        if at_once and not by_row:
            with explained_errors(args, kwargs, guide):
                self._chunks = DrawChunks(guide, args, kwargs, num_samples, seed)
        #: which latents of rows are in the order of the rows' numbers
        self.order = numbered_if_drawn(guide) if self._chunks else numbered_if_called(guide)

    def at(self, index: int) -> dict[str, Tensor]:
        """
        One draw.

        :param int index: of the draw, each once and in order.
        :returns: values by name, of the shape of their sites.
        """
        if self._chunks is not None:
            held, offset = self._chunks.holding(index)
            return {name: values[index - offset] for name, values in held.items()}
        sites = latent_sites(self.guide, self.args, self.kwargs)
        return {name: site["value"] for name, site in sites.items()}
