"""Saving and rebuilding samplers, as plain values and tensors only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pyro_implicit.exceptions import StateError
from pyro_implicit.generators.base import Generator, generator_class
from pyro_implicit.generators.preconditioner import Preconditioner
from pyro_implicit.generators.rescaled import Rescaled
from pyro_implicit.guides.sampler import Sampler

__all__ = ["sampler_from_state", "sampler_state"]


def sampler_state(sampler: Sampler) -> dict[str, Any]:
    """The structure of ``sampler`` as strings, numbers and lists."""
    learned, generator = sampler.raw_scale, sampler.generator
    inner = generator.inner if isinstance(generator, Rescaled) else generator
    state = {
        "generator": inner.config(),
        "generator_type": type(inner).__name__,
        "rescaled": inner is not generator,
        "output_dim": sampler.generator.output_dim,
        "preconditioner": sampler.preconditioner.kind,
        "scale": sampler.fixed_scale,
        "learn_scale": False if learned is None else ("diagonal" if learned.dim() else "scalar"),
        "dtype": str(sampler.preconditioner.loc.dtype).removeprefix("torch."),
    }
    if sampler.preconditioner.shift is not None:
        state["learn_loc"] = True
    return state


def sampler_from_state(
    state: dict[str, Any], own_generator: Callable[[int], Generator | None]
) -> Sampler:
    """
    A sampler of that structure; its tensors are still to be loaded.

    :param dict state: what :func:`sampler_state` returned.
    :param own_generator: makes the guide's own generator from the number of outputs, for kinds
        that are no part of this package, or returns None.
    :raises StateError: if such a generator is needed and there is none.
    """
    m, config = state["output_dim"], state["generator"]
    kind = None if config is None else generator_class(config["type"])
    if kind is None:
        made = own_generator(m)
    else:
        made = kind(**{key: value for key, value in config.items() if key != "type"})
    if made is None:
        raise StateError(
            f"the state was saved with a generator of your own ({state['generator_type']}), which "
            "is not stored by value: make the guide with the same generator=... and call "
            "guide.load_state_dict(state) again."
        )
    if state["rescaled"]:
        made = Rescaled(made, torch.ones(m), torch.zeros(m))
    shapes: dict[str, tuple[int, ...] | None] = {"none": None, "diagonal": (m,), "full": (m, m)}
    shape = shapes[state["preconditioner"]]
    factor = None if shape is None else (torch.eye(m) if len(shape) == 2 else torch.ones(m))
    unit = torch.ones(m) if state.get("learn_loc") else None
    preconditioner = Preconditioner(torch.zeros(m), factor, unit)
    sampler = Sampler(made, preconditioner, state["scale"], state["learn_scale"])
    return sampler.to(getattr(torch, state["dtype"]))
