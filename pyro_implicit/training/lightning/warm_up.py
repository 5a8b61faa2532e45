"""One batch before the optimiser is made, so that every parameter exists and is known."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pyro import poutine
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from pyro_implicit._params import unconstrained
from pyro_implicit._random import read_random_state, write_random_state
from pyro_implicit.exceptions import ArgumentError, SiteError, StateError
from pyro_implicit.handlers.networks.called_parameters import CalledParameters
from pyro_implicit.handlers.observations.data_use import DataUse
from pyro_implicit.training.batch_sizes import sizes_of_loader

__all__ = [
    "FirstBatch",
    "another_batch",
    "check_copies",
    "evaluate_once",
    "first_batch",
    "sizes_of_batches",
]


_ADVICE_ON_MODULES = "they are no part of LightningVI. Write LightningVI(..., modules=[net])"


@dataclass(frozen=True)
class FirstBatch:
    """
    What one batch shows.

    :param warnings: of networks whose parameters will not be trained.
    :param of_several: what to say where it is one of several, given their rows
        (:meth:`~pyro_implicit.handlers.observations.data_use.DataUse.several_batches`).
    """

    warnings: list[str]
    of_several: Callable[[Sequence[int]], str | None]


def evaluate_once(
    loss: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    parameters: Callable[[], Iterable[nn.Parameter]],
    *,
    networks: Collection[nn.Module] = (),
    gradients: bool = False,
) -> FirstBatch:
    """
    Runs the loss once: guides are built, and critics.

    :param loss: a function of the batch that makes ``pyro.param`` statements.
    :param parameters: tells, afterwards, what will be trained.
    :param networks: those that the objective trains itself.
    :param bool gradients: whether the loss is one that must have a gradient, as those of Pyro's
        objectives that sum over discrete latents.
    :returns: what a user should know.
    :raises SiteError: if there are parameters beside those; they would silently stay as they are.
    """
    use, called = DataUse(), CalledParameters(without_gradients=True)
    with torch.set_grad_enabled(gradients), use, called:
        trace = poutine.trace(loss, param_only=True).get_trace(*args, **kwargs)
    values = {name: node["value"] for name, node in trace.nodes.items() if node["type"] == "param"}
    known = {id(parameter) for parameter in parameters()}
    missing = [name for name, value in values.items() if id(unconstrained(value)) not in known]
    if missing:
        raise SiteError(
            f"the model or the guide has parameters that are not part of LightningVI, so that they "
            f"would be neither trained nor saved: {', '.join(missing)}. If they belong to a module "
            "that the model uses, write LightningVI(..., modules=[net]); if they are pyro.param "
            "statements, make the model a PyroModule with PyroParam attributes."
        )
    own = (one for net in networks for one in net.parameters())
    notes = called.warning_of_untrained([*parameters(), *own], _ADVICE_ON_MODULES)
    return FirstBatch([notes] if notes else [], use.several_batches)


def first_batch(trainer: Any) -> Any:
    """
    The first batch that the trainer would train on; loader and random state stay as they were.

    So do the generators of a loader and of torch's samplers; a sampler of one's own with a state is
    begun once more.

    :raises ArgumentError: if the loader is none that a batch can be taken from beforehand, or has
        no batch.
    """
    loader = _loader_of(trainer)
    random = read_random_state()
    generators = [(one, one.get_state()) for one in _generators_of(loader)]
    place = loader.state_dict() if hasattr(loader, "state_dict") else None
    try:
        if not _can_be_read_twice(loader):
            raise ArgumentError(
                "a warm-up batch is needed before the optimiser is made, and the training data "
                f"are a {type(loader).__name__}, not one loader that can be read twice. Give one "
                "batch: LightningVI(..., example=batch)."
            )
        return _first_of(loader)
    finally:
        write_random_state(random)
        for generator, state in generators:
            generator.set_state(state)
        if place is not None:
            loader.load_state_dict(place)


def _first_of(loader: Any) -> Any:
    for batch in loader:
        return batch
    raise ArgumentError(
        "the training loader has no batch: the data have no rows, or fewer than batch_size with "
        "drop_last=True."
    )


def _generators_of(loader: Any) -> list[torch.Generator]:
    """Those that a loader of torch and its samplers draw from."""
    batches = getattr(loader, "batch_sampler", None)
    places = (loader, getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None))
    found = [getattr(place, "generator", None) for place in places]
    return list({id(one): one for one in found if isinstance(one, torch.Generator)}.values())


def another_batch(trainer: Any) -> Any:
    """
    A batch that the trainer would train on, where it costs nobody a batch to look at one.

    :param trainer: of Lightning, before its loops have begun.
    :returns: the batch; None of streams, of several loaders, and where it cannot be had as yet.
    """
    try:
        loader = _loader_of(trainer)
        if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
            return None
        return first_batch(trainer)
    except Exception:  # of data that are not there before training begins
        return None


def sizes_of_batches(trainer: Any) -> list[int] | None:
    """
    Rows of the batches of an epoch, if the trainer goes through more than one.

    :param trainer: of Lightning, before its loops have begun.
    :returns: :func:`~pyro_implicit.training.batch_sizes.sizes_of_loader`; None for one batch, and
        where nobody can tell.
    """
    try:
        loader = _loader_of(trainer)
        if isinstance(loader, (dict, list, tuple)) or len(loader) < 2:
            return None
    except Exception:  # a loader without a length, or with none before it is begun
        return None
    return sizes_of_loader(loader)


def _loader_of(trainer: Any) -> Any:
    source = trainer.fit_loop._data_source  # there is no public way to it before the loop starts
    return source.dataloader() if source.is_defined() else None


def _can_be_read_twice(loader: Any) -> bool:
    several = isinstance(loader, (dict, list, tuple))
    return hasattr(loader, "__iter__") and not several and iter(loader) is not loader


def check_copies(callbacks: Iterable[Any], module: nn.Module) -> None:
    """
    Refuses averages of weights that began before the weights were there.

    :param callbacks: of the trainer; those of Lightning that average weights copy the module when
        they are set up, which is before the first batch is seen.
    :param module: as it is after that batch.
    :raises StateError: if such a copy has other parameters.
    """
    own = [param.shape for param in module.parameters()]
    for callback in callbacks:
        copy = getattr(callback, "_average_model", None)
        if isinstance(copy, nn.Module) and [param.shape for param in copy.parameters()] != own:
            raise StateError(
                f"{type(callback).__name__} has copied the module before the guide was built, and "
                "would average what the guide did not yet have. Write vi.warm_up(batch), with one "
                "batch of the loader, before trainer.fit(vi, loader)."
            )
