"""Which dimension of each site of a model holds the rows of its arguments."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from pyro_implicit.handlers.rows.row_slices import changed_dims

if TYPE_CHECKING:
    from pyro_implicit.inference.predictive_run import PredictiveRun

__all__ = ["Layout"]


@dataclass(frozen=True)
class Layout:
    """
    What runs on a single draw and few rows tell about the sites.

    :param dict shapes: shape of one draw of each site.
    :param dict row_dims: negative dimension of the rows in a value of each site that has rows.
    :param int nesting: number of the model's plate dimensions.
    :param shifted: names of sites that have rows, but not those of the arguments: ``y[1:]`` has one
        less. What lies between two batches is in neither.
    """

    shapes: dict[str, torch.Size] = field(default_factory=dict)
    row_dims: dict[str, int] = field(default_factory=dict)
    nesting: int = 0
    shifted: frozenset[str] = frozenset()

    @classmethod
    def compare(cls, fewer: PredictiveRun, more: PredictiveRun) -> Layout:
        """
        The row dimension is the first that differs between runs on fewer and on more rows.

        Its size is that of the arguments, or a multiple of it.
        """
        row_dims, shifted = {}, set()
        for name, shape in more.shapes.items():
            less = fewer.shapes.get(name, shape)
            changed = changed_dims(less, shape)
            if not changed:
                continue
            if less[changed[0]] * more.here == shape[changed[0]] * fewer.here:
                row_dims[name] = changed[0]
            else:
                shifted.add(name)
        return cls(more.shapes, row_dims, more.deepest, frozenset(shifted))
