"""Layers that normalise by running statistics what differs from draw to draw."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from pyro_implicit._random import RandomStream
from pyro_implicit.handlers.networks.evaluation_mode import was_training
from pyro_implicit.handlers.networks.left_out_noise import calling_module, given_argument
from pyro_implicit.handlers.pointwise import is_auxiliary, is_latent_of_model

__all__ = ["NormInputs", "OtherLatents", "PlainRun", "warning_of_drawn_norms"]

_MAX_CALLS = 8  # of one layer in a run whose inputs are kept
_SEED_OF_OTHERS = 1


class NormInputs(TorchFunctionMode):
    """
    Notes what comes to the normalisations of modules that were in training mode.

    To be used within :func:`~pyro_implicit.handlers.networks.evaluation_mode.evaluation_mode`.

    :ivar dict inputs: by module that normalises by running statistics, what it normalises at its
        first calls.
    """

    def __init__(self) -> None:
        super().__init__()
        self.inputs: dict[nn.Module, list[Tensor]] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        if func in (F.batch_norm, F.instance_norm):
            self._note(args, options)
        return func(*args, **options)

    def _note(self, args: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        given = given_argument(args, options, 0, "input")
        mean = given_argument(args, options, 1, "running_mean")
        module = None if mean is None else calling_module()
        if module is None or not isinstance(given, Tensor):
            return
        if not (module.training or was_training(module)):
            return
        calls = self.inputs.setdefault(module, [])
        if len(calls) < _MAX_CALLS:
            calls.append(given.detach())


class PlainRun(Messenger):
    """
    Notes of a run what :class:`OtherLatents` needs to run the model again.

    :ivar dict states: by site, the random states after it, of a plate after each use of its name.
    :ivar set rows: names of the plates around observations.
    :ivar set sizes: their sizes, where they have more than one row.
    """

    def __init__(self) -> None:
        super().__init__()
        self.states: dict[str, list[Tensor]] = {}
        self.rows: set[str] = set()
        self.sizes: set[int] = set()

    def _pyro_post_sample(self, msg: Any) -> None:
        self.states.setdefault(msg["name"], []).append(torch.get_rng_state())
        if msg["is_observed"] and not is_auxiliary(msg):
            around = [frame for frame in msg["cond_indep_stack"] if frame.vectorized]
            self.rows |= {frame.name for frame in around}
            self.sizes |= {size for f in around for size in (f.size, f.full_size) if size != 1}

    def is_of_rows(self, site: Any) -> bool:
        """
        Tells latents of each row by their plates.

        :param site: a site.
        :returns: whether it is in a plate of the observations, or in another one of their size.
        """
        frames = [frame for frame in site["cond_indep_stack"] if frame.vectorized]
        sizes = {size for frame in frames for size in (frame.size, frame.full_size)}
        return bool(self.rows & {frame.name for frame in frames} or self.sizes & sizes)


class OtherLatents(Messenger):
    """
    Draws other latents, but for those of rows, and leaves all other random numbers as they are.

    Rows that a plate takes, noise that the model adds, and latents of each row are those of the
    plain run, from the same random state as that one.

    :param PlainRun plain: what was noted of that one.
    """

    def __init__(self, plain: PlainRun) -> None:
        super().__init__()
        self._plain, self._stream = plain, RandomStream(_SEED_OF_OTHERS)
        self._left = {name: iter(states) for name, states in plain.states.items()}

    def _pyro_post_sample(self, msg: Any) -> None:
        in_rows = self._plain.is_of_rows(msg)
        if is_latent_of_model(msg) and not in_rows:
            with self._stream:
                msg["value"] = msg["fn"](*msg["args"], **msg["kwargs"])
        state = next(self._left.get(msg["name"], iter(())), None)
        if state is not None:  # a sampler may take more numbers for other values
            torch.set_rng_state(state)


def warning_of_drawn_norms(some: NormInputs, others: NormInputs) -> str | None:
    """
    Tells of running statistics that are averages over draws of latents.

    :param NormInputs some: in a :class:`PlainRun`.
    :param NormInputs others: in a run with :class:`OtherLatents`.
    :returns: what to write, for a warning; None if no input depends on the draw.
    """
    drawn = [one for one, calls in some.inputs.items() if _differ(calls, others.inputs.get(one))]
    if not drawn:
        return None
    names = ", ".join(dict.fromkeys(type(one).__name__ for one in drawn))
    return (
        f"layers with running statistics ({names}, in training mode) come after latents that are "
        "drawn: steps normalise each draw by itself, predict and evaluate all draws by one average "
        "over them, which fits none, so that scores may be far below the fit's. Use LayerNorm or "
        "GroupNorm; or call .eval() before fit (net.eval() of a BayesianModule), with statistics "
        "of a trained network."
    )


def _differ(some: list[Tensor], others: list[Tensor] | None) -> bool:
    pairs = zip(some, others or (), strict=False)
    return any(a.shape == b.shape and not bool((a == b).all()) for a, b in pairs)
