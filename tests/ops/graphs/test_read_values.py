"""Numbers that a program takes out of PyTorch are noticed, also while its operations are traced."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pyro_implicit.ops.graphs.read_values import ReadValues
from pyro_implicit.ops.graphs.recording import trace_operations

READS: dict[str, Callable[[Tensor], Any]] = {
    "tolist": lambda w: w.tolist(),
    "numpy": lambda w: w.detach().numpy()[0],
    "of data": lambda w: w.data.numpy(),
    "asarray": lambda w: np.asarray(w),
    "memoryview": lambda w: memoryview(w.numpy())[0],
    "dlpack": lambda w: np.from_dlpack(w),
    "text": lambda w: str(w[0]),
    "format": lambda w: f"{w[0]:.3f}",
    "equal": lambda w: torch.equal(w, w + 1),
    "allclose": lambda w: w.allclose(w),
    "Tensor": lambda w: torch.Tensor([w[0], 1.0]),
    "Tensor of a flag": lambda w: torch.Tensor([w[0] > 0]),
    "FloatTensor": lambda w: torch.FloatTensor([w[0]]),
    "LongTensor": lambda w: torch.LongTensor([w.long()[0]]),
    "new": lambda w: w.new([w[0] > 0]),
    "apply_": lambda w: w.clone().apply_(lambda v: v + 1),
    "map_": lambda w: w.clone().map_(w, lambda a, b: a + b),
    "storage": lambda w: w.untyped_storage()[3],
}
STAYS: dict[str, Callable[[Tensor], Any]] = {
    "shape": lambda w: (w.shape, len(w), w.dtype),
    "where": lambda w: torch.where(w > 0, w, -w),
    "nothing": lambda w: w,
    "constants": lambda w: (torch.Tensor([1.0, 2.0]), w.new([1.0]), w.new(2, 3)),
    "memory": lambda w: w.data_ptr(),
}


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("name", [*READS, *STAYS])
def test_what_is_read(name: str, traced: bool) -> None:
    def program(w: Tensor) -> Tensor:
        (READS | STAYS)[name](w)
        return 2 * w

    example = torch.tensor([0.5, -1.0])
    # the tracer refuses some by itself, which is as good
    refused = contextlib.suppress(RuntimeError, TypeError) if traced else contextlib.nullcontext()
    with ReadValues() as read, refused:
        trace_operations(program, example) if traced else program(example)
    assert read.found == (name in READS)
