"""What cannot fit into memory is refused before it is made."""

from __future__ import annotations

import math
import os

import pytest
import torch

from pyro_implicit._memory import check_fits, total_memory
from pyro_implicit.exceptions import OutOfMemoryError

CPU = torch.device("cpu")


def test_the_memory_of_the_machine() -> None:
    assert 2**28 < total_memory(CPU) < 2**60


def test_a_system_that_does_not_tell_has_no_limit(monkeypatch) -> None:
    monkeypatch.delattr(os, "sysconf")
    assert total_memory(CPU) == math.inf
    check_fits(10**18, torch.float32, CPU, "this", "")


def test_too_much_is_refused_with_both_numbers_and_the_way_out() -> None:
    check_fits(1000, torch.float64, CPU, "this", "")
    with pytest.raises(OutOfMemoryError, match=r"this would take 3725290.3 GiB.*GiB in all\. Cut"):
        check_fits(10**15, torch.float32, CPU, "this", "Cut it.")


@pytest.mark.gpu
def test_the_memory_of_the_gpu() -> None:
    assert total_memory(torch.device("cuda")) > 2**30
