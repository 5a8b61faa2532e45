"""What cannot fit into memory is refused before it is made."""

from __future__ import annotations

import builtins
import math

import pytest
import torch

from pyro_implicit._memory import check_fits, free_memory
from pyro_implicit.exceptions import OutOfMemoryError

CPU = torch.device("cpu")


def test_the_free_memory_of_the_machine() -> None:
    assert 2**20 < free_memory() < 2**60


def test_a_system_that_does_not_tell_has_no_limit(monkeypatch) -> None:
    def no_file(*_, **__):
        raise OSError

    monkeypatch.setattr(builtins, "open", no_file)
    assert free_memory() == math.inf
    check_fits(10**18, torch.float32, CPU, "this", "")


def test_too_much_is_refused_with_both_numbers_and_the_way_out() -> None:
    check_fits(1000, torch.float64, CPU, "this", "")
    with pytest.raises(OutOfMemoryError, match=r"this would take 3.73e\+06 GiB.*GiB free\. Cut"):
        check_fits(10**15, torch.float32, CPU, "this", "Cut it.")


@pytest.mark.gpu
def test_the_free_memory_of_the_gpu() -> None:
    assert free_memory(torch.device("cuda")) > 2**30


def test_what_torch_keeps_of_the_gpu_for_itself_is_free(monkeypatch) -> None:
    numbers = {"mem_get_info": (100, 1000), "memory_reserved": 70, "memory_allocated": 30}
    for name, number in numbers.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, number=number: number)
    assert free_memory(torch.device("cuda")) == 140
