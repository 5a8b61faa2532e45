"""A DataLoader whose place in an epoch can be saved and found again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from pyro_implicit._checks import check_seed, shown
from pyro_implicit._random import RandomStream
from pyro_implicit.exceptions import ArgumentError, StateError

__all__ = ["ResumableLoader"]

_COUNTERS_OF_PLACE = ("batches", "batch", "epoch")
_SEED_STRIDE_OF_EPOCHS = 1_000_003  # so that they do not meet those of neighbouring seeds


class ResumableLoader(DataLoader[Any]):
    """
    A ``DataLoader`` of torch whose place in the middle of an epoch can be saved.

    It takes all arguments of ``torch.utils.data.DataLoader``; its batches are a function of
    ``seed``, epoch and place alone: shuffling, workers, and random augmentation in the data set (by
    the global generators of torch, NumPy or Python) draw from a stream of their own, which each
    epoch begins anew. It has ``state_dict`` and ``load_state_dict``, and Lightning saves and
    restores its place.

    After a resume the batches that came before are fetched once more and dropped, so that a random
    augmentation is the same too; that costs their loading time, no training time.

    In several processes Lightning gives it a ``DistributedSampler``, as any DataLoader. With
    ``Trainer(use_distributed_sampler=False)`` all processes see the same batches in the same order:
    so are particles spread over devices.

    :param dataset: with ``__len__`` and ``__getitem__``.
    :param args: arguments of ``DataLoader`` by place, such as the batch size.
    :param int seed: of all that is random in the loading.
    :param options: those of ``DataLoader``.
    :raises ArgumentError: for an iterable data set, or none, a ``generator`` (give ``seed``), or
        ``persistent_workers`` (whose random state nobody can restore).
    """

    def __init__(self, dataset: Any, *args: Any, seed: int = 0, **options: Any) -> None:
        if isinstance(dataset, IterableDataset):
            raise ArgumentError(
                f"{type(dataset).__name__} is an iterable dataset, which has no place to come back "
                "to; expected one with __len__ and __getitem__. (torchdata's StatefulDataLoader "
                "serves iterable datasets that save their own state.)"
            )
        if options.get("generator") is not None:
            raise ArgumentError(
                "generator= was given; all that is random here comes from seed=, an integer."
            )
        if options.get("persistent_workers"):
            raise ArgumentError(
                "persistent_workers=True: workers that live on keep a random state that cannot be "
                "restored. Leave it out."
            )
        seed = check_seed("seed", seed)
        has_items = hasattr(type(dataset), "__getitem__") and hasattr(type(dataset), "__len__")
        if not has_items or (isinstance(dataset, Tensor) and not dataset.dim()):
            raise ArgumentError(
                f"dataset={shown(dataset)}; expected one with __len__ and __getitem__, such as "
                "TensorDataset(x, y)."
            )
        super().__init__(dataset, *args, **options)
        self.seed = seed
        self._epoch = 0  # of the batch last given
        self._given = 0  # batches of that epoch
        self._next_epoch = 0  # epoch of the next iteration
        self._skip = 0

    def __iter__(self) -> Any:
        return self._batches()  # nothing is drawn before the first batch is asked for

    def _batches(self) -> Iterator[Any]:
        epoch, skip = self._next_epoch, self._skip
        self._epoch, self._given, self._next_epoch, self._skip = epoch, 0, epoch + 1, 0
        stream = RandomStream(self.seed + _SEED_STRIDE_OF_EPOCHS * epoch)
        with stream:
            iterator = super().__iter__()
        while True:
            try:
                with stream:
                    batch = next(iterator)
            except StopIteration:
                return
            self._given += 1
            if self._given > skip:
                yield batch

    def state_dict(self) -> dict[str, Any]:
        """
        The place of the batch last given, and what it is a place in.

        :returns: plain values, which :meth:`load_state_dict` reads.
        """
        place = {"epoch": self._epoch, "batch": self._given, "batches": len(self)}
        return {"seed": self.seed, **place, **self._data()}

    def _data(self) -> dict[str, Any]:
        return {"rows": len(self.dataset), "batch_size": self.batch_size}  # type: ignore[arg-type]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """
        The next iteration goes on after that place.

        :param dict state: what :meth:`state_dict` returned.
        :raises StateError: if it is not a state of this class, or is of another seed, batch size or
            number of rows.
        """
        here = {"seed": self.seed, **self._data()}
        if not isinstance(state, dict) or set(state) != {*_COUNTERS_OF_PLACE, *here}:
            raise StateError(
                f"not the place of a ResumableLoader: {shown(state)}; expected the entries "
                f"{', '.join(sorted({*_COUNTERS_OF_PLACE, *here}))}."
            )
        for name in _COUNTERS_OF_PLACE:
            if type(state[name]) is not int or state[name] < 0 or state["batch"] > state["batches"]:
                raise StateError(
                    f"not the place of a ResumableLoader: {name} is {shown(state[name])}; expected "
                    "integers >= 0, and no more batches than the epoch has."
                )
        for name, value in here.items():
            if type(state[name]) is not type(value) or state[name] != value:
                raise StateError(
                    f"the place was saved with {name}={shown(state[name])}; this loader has "
                    f"{name}={value} and other batches. Make it with the same {name}, or begin a "
                    "new run from the saved parameters."
                )
        ended = state["batch"] >= len(self)
        self._next_epoch = self._epoch = state["epoch"] + ended
        self._skip = self._given = 0 if ended else state["batch"]
