"""Random numbers as a stream that can be set aside, saved and taken up again."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import TracebackType
from typing import Any

import numpy as np
import torch
from pyro.util import get_rng_state, set_rng_state
from torch import Tensor
from torch.utils import _pytree

from pyro_implicit.exceptions import StateError

__all__ = [
    "RandomStream",
    "mixed_seed",
    "own_numbers",
    "plain_state",
    "read_random_state",
    "same_random_state",
    "seed_all",
    "seed_torch",
    "state_from_plain",
    "torch_seeder",
    "write_random_state",
]

State = dict[str, Any]


def read_random_state() -> State:
    """The global random state of torch (CPU and all CUDA devices), NumPy and Python."""
    state: State = get_rng_state()
    return state | _read_cuda()


def write_random_state(state: State) -> None:
    """Puts back what :func:`read_random_state` returned."""
    set_rng_state(state)
    _write_cuda(state)


def same_random_state(one: State, other: State) -> bool:
    """Whether two states that :func:`read_random_state` returned are the same."""
    leaves, _ = _pytree.tree_flatten(one)
    others, _ = _pytree.tree_flatten(other)
    return len(leaves) == len(others) and all(
        torch.equal(a, b) if isinstance(a, Tensor) else repr(a) == repr(b)
        for a, b in zip(leaves, others, strict=True)
    )


def read_torch_state() -> State:
    """That of torch alone, which takes a fiftieth of the time."""
    return {"torch": torch.get_rng_state()} | _read_cuda()


def write_torch_state(state: State) -> None:
    """Puts back what :func:`read_torch_state` returned."""
    torch.set_rng_state(state["torch"])
    _write_cuda(state)


def _read_cuda() -> State:
    """Of all devices: a seed is set on all of them, too."""
    return {"cuda": torch.cuda.get_rng_state_all()} if torch.cuda.is_initialized() else {}


def _write_cuda(state: State) -> None:
    """To the devices that there are."""
    if "cuda" in state and torch.cuda.is_available():
        for number, one in zip(range(torch.cuda.device_count()), _by_device(state), strict=False):
            torch.cuda.set_rng_state(one, number)


def _by_device(state: State) -> list[Tensor]:
    """One for each device; it was that of a single one in earlier states."""
    saved = state.get("cuda", [])
    return [saved] if isinstance(saved, Tensor) else list(saved)


def seed_all(seed: int) -> None:
    """
    Seeds what ``pyro.set_rng_seed`` does, torch by :func:`seed_torch`.

    :param int seed: of the generators of torch, Python and NumPy, below 2**32.
    """
    seed_torch(seed)
    random.seed(seed)
    np.random.seed(seed)


@contextmanager
def own_numbers() -> Iterator[int]:
    """
    Random numbers of torch that begin at a seed which torch draws, and do not shift later ones.

    :returns: a context with that seed.
    """
    seed = int(torch.randint(2**62, ()))
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):
        seed_torch(seed)
        yield seed


def mixed_seed(*numbers: int) -> int:
    """
    One seed from several numbers, such as a seed and a counter.

    Neighbours of one lead to neighbours of the other nowhere: with a sum of both, seeds that differ
    by one would share all but one of their draws.

    :param int numbers: any integers.
    :returns: a seed below ``2**63``.
    """
    state = 0x9E3779B97F4A7C15
    for number in numbers:
        state = (state ^ (number % 2**64)) * 0xBF58476D1CE4E5B9 % 2**64
        state ^= state >> 31
    return state % 2**63


def seed_torch(seed: int) -> None:
    """
    Seeds torch as ``torch.manual_seed`` does, in a hundredth of its time if there is a CPU alone.

    That function keeps a formatted stack for each kind of device that was not used yet.

    :param int seed: of the generators of all devices.
    """
    torch_seeder()(seed)


def torch_seeder() -> Callable[[int], Any]:
    """
    What seeds torch as :func:`seed_torch` does, for many seeds in a row.

    :returns: a function of the seed; of no use once another kind of device is used.
    """
    if torch.cuda.is_initialized() or _has_other_devices():
        return torch.manual_seed
    return torch.default_generator.manual_seed


@cache
def _has_other_devices() -> bool:
    return torch.backends.mps.is_available() or torch.xpu.is_available()


def plain_state(state: State) -> State:
    """A random state as tensors and plain values, to be read with ``weights_only=True``."""
    name, keys, *rest = state["numpy"]
    version, numbers, gauss = state["random"]
    return state | {
        "numpy": [name, torch.from_numpy(keys.astype(np.int64)), *rest],
        "random": [version, torch.tensor(numbers), gauss],
    }


def state_from_plain(plain: Any) -> State:
    """
    The inverse of :func:`plain_state`.

    :raises StateError: if it is not such a state.
    """
    try:
        name, keys, *rest = plain["numpy"]
        version, numbers, gauss = plain["random"]
        state = dict(plain) | {
            "numpy": (name, keys.numpy().astype(np.uint32), *rest),
            "random": (version, tuple(numbers.tolist()), gauss),
            "torch": plain["torch"].cpu(),
        }
        if "cuda" in plain:
            state["cuda"] = [one.cpu() for one in _by_device(plain)]
        _try_out(state)
        return state
    except Exception as error:  # the generators raise what they like
        raise StateError(
            f"the saved random state is not readable ({error!r}); expected the entries torch, "
            "numpy and random, as LightningVI writes them."
        ) from error


def _try_out(state: State) -> None:
    """On generators of its own, before the global ones are touched."""
    torch.Generator("cpu").set_state(state["torch"])
    np.random.RandomState().set_state(state["numpy"])
    random.Random().setstate(state["random"])
    if torch.cuda.is_available():
        for one in _by_device(state):
            torch.Generator("cuda").set_state(one)


class RandomStream:
    """
    A random state of its own for what happens inside of ``with stream:``.

    Outside, all goes on as if nothing had been drawn.

    :param int seed: where the stream begins.
    """

    def __init__(self, seed: int) -> None:
        self._outside: State | None = None
        self._state = self._seeded(seed)

    @staticmethod
    def _seeded(seed: int) -> State:
        before = read_random_state()
        try:
            seed_all(seed % 2**32)
            return read_random_state()
        finally:
            write_random_state(before)

    @property
    def state(self) -> State:
        """Where the stream is now, inside of the block or not."""
        return self._state if self._outside is None else read_random_state()

    @state.setter
    def state(self, state: State) -> None:
        self._state = state

    @property
    def outside(self) -> State:
        """The global state outside of the stream."""
        return read_random_state() if self._outside is None else self._outside

    def __enter__(self) -> RandomStream:
        self._outside = read_random_state()
        write_random_state(self._state)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        if self._outside is None:
            return
        self._state = read_random_state()
        write_random_state(self._outside)
        self._outside = None
