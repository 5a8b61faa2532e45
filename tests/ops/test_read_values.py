"""Numbers that a program takes out of PyTorch are noticed, also while its operations are traced."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pyro_implicit.ops.read_values import ReadValues
from pyro_implicit.ops.recording import trace_operations

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
}
STAYS: dict[str, Callable[[Tensor], Any]] = {
    "shape": lambda w: (w.shape, len(w), w.dtype),
    "where": lambda w: torch.where(w > 0, w, -w),
    "nothing": lambda w: w,
}


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("name", [*READS, *STAYS])
def test_what_is_read(name: str, traced: bool) -> None:
    def program(w: Tensor) -> Tensor:
        (READS | STAYS)[name](w)
        return 2 * w

    example = torch.tensor([0.5, -1.0])
    # the tracer refuses some by itself, which is as good
    refused = contextlib.suppress(RuntimeError) if traced else contextlib.nullcontext()
    with ReadValues() as read, refused:
        trace_operations(program, example) if traced else program(example)
    assert read.found == (name in READS)
