"""Any ``nn.Module`` as a Bayesian network: a prior over its parameters, no other change."""

# Shape legend: P parameter shape, B batch shape of its draw, S particles, N rows, K outputs.
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Literal

import pyro
import torch
from pyro.infer.autoguide.initialization import init_to_median
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.conv import _ConvNd

from pyro_implicit._checks import check_choice, check_count, check_flag, check_text
from pyro_implicit._few import few_of
from pyro_implicit._params import emit_params
from pyro_implicit._warn import warn
from pyro_implicit.bayesian.joint_prior import JointPrior, part_for
from pyro_implicit.bayesian.priors import ParameterPriors, Prior
from pyro_implicit.bayesian.private_copy import (
    aliases,
    has_running_statistics,
    owner_of,
    private_copy,
    refuse_running_statistics,
    to_buffers,
)
from pyro_implicit.bayesian.recurrence import steps_of_recurrence
from pyro_implicit.bayesian.refused_networks import refuse_unusable, refuse_unusable_latents
from pyro_implicit.bayesian.vectorization import (
    common_batch_shape,
    over_draws,
    over_rows,
    warn_inside_data_plate,
)
from pyro_implicit.exceptions import ArgumentError, ImplicitError

__all__ = ["BayesianModule"]

Vectorize = Literal["auto", "vmap", "loop"]


class BayesianModule(nn.Module):
    r"""
    A network whose parameters are latent variables of a Pyro model.

    Each call draws one Pyro sample site per selected parameter tensor :math:`w_i \sim p(w_i)` and
    evaluates a private copy of the module with these draws. The module that is passed in stays as
    it is, and so does its training: wrap as many times as you like. To be called within a model,
    outside of its data plate.

    *Sites* are named as in ``module.named_parameters()``, with ``name`` and a dot in front of it if
    there is a name (two networks in one model need names). Parameters that share one tensor are one
    site. What the prior does not select stays deterministic: with ``requires_grad`` it is trained
    along with the guide (a partially stochastic network), without it is frozen.

    *Many draws at once* (``vectorize_particles``, ``Predictive(parallel=True)``, any plate around
    the model) go through :func:`torch.func.vmap`; layers never see a batched parameter. When vmap
    cannot (data-dependent control flow, in-place updates of buffers) a loop does the same, more
    slowly; on CPUs, networks with convolutions go through the loop at once, which is faster for
    them (LeNet: a quarter of a step). With draws of batch shape ``(S, 1)`` an output ``(N, K)``
    becomes ``(S, N, K)``. A batch of a single draw is evaluated directly and adds no dim. Random
    layers (dropout) differ between draws.

    *BatchNorm* and others with running statistics: they are no parameters, so never latent. In
    training mode one draw at a time updates them (in the copy) as usual; several draws are refused.
    Behind weights that are drawn they are an average over draws that fits none, and predictions are
    worse than the fit: take LayerNorm or GroupNorm.

    :param torch.nn.Module module: the network, already initialised (no lazy parameters).
    :param prior: one of

        - a distribution of ``pyro.distributions``, the prior of every entry of every parameter;
        - a dict from parameter names, or regular expressions that match whole names, to a
          distribution, a function as below, or ``None`` (deterministic). A name wins over patterns,
          then the first pattern that matches; parameters without a match are deterministic;
        - a function ``(name, tensor) -> distribution or None`` of a parameter's name (without the
          prefix) and its value in ``module``. It is called anew at each draw, so it may hold sample
          statements: ``lambda name, w: dist.Normal(0., pyro.sample(f"{name}_scale",
          dist.HalfNormal(1.))[(..., *[None] * w.dim())])``. The indexing matters when plates batch
          the scale. A hyperparameter of the same name is drawn once for all tensors. It is also
          called once when the module is wrapped, unseen by Pyro, to learn which parameters it
          selects;
        - a :class:`~pyro_implicit.bayesian.JointPrior` of all parameters together, such as
          yesterday's posterior (:func:`~pyro_implicit.inference.prior_from`). Parameters that are
          none of its sites are deterministic, and its other sites are left out.

        A distribution has either no event dims and a batch shape that broadcasts to the parameter's
        shape, or exactly the parameter's shape as its event shape. It follows the parameter's dtype
        and device.
        Biases alone are ``{r".*bias": prior}``. Made by functions of ``pyro_implicit.bayesian``:
        ``last_layer(module, prior)``, ``priors_by_type(module, {nn.Linear: prior})``,
        ``fan_in_prior()``, ``hierarchical_prior()``; ``with_adapters(module)`` is a frozen copy
        with low-rank adapters as its only parameters.
    :param str name: prefix of the site names.
    :param bool local: whether the draws are per datum (an amortised, conditional guide; a model
        with random effects in the network). The call then belongs *inside* the data plate at dim
        -1: sites get batch shape ``(N,)`` or ``(S, N)`` and the i-th draw is used for the i-th row
        of every tensor argument alone. Outputs are ``(N, ...)`` or ``(S, N, ...)``.
    :param int batch_dims: how many leading dims of the network's output are plates of the model
        (its rows; default 1). With draws of shape ``(S, 1, 1)`` the output of a network with one
        such dim becomes ``(S, 1, N, ...)``, with two ``(S, N, M, ...)``.
    :param str vectorize: ``"vmap"``, ``"loop"``, or ``"auto"`` (default): vmap, and from the first
        failure of it on the loop, with a warning; the loop for convolutions on CPUs.
    :raises ArgumentError: for a module or prior that cannot be used, told in the message.
    :raises ShapeError: for a prior or a draw that does not fit its parameter.
    :raises LayerError: for running statistics that would be updated by several draws.

    Example::

        net = BayesianModule(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)),
                             prior=dist.Normal(0.0, 1.0))

        def model(x, y=None):
            f = net(x).squeeze(-1)
            with pyro.plate("data", len(x)):
                return pyro.sample("y", dist.Normal(f, 0.1), obs=y)
    """

    _convolves = False  # modules that were saved before do not know

    def __init__(
        self,
        module: nn.Module,
        prior: Prior | JointPrior,
        *,
        name: str = "",
        local: bool = False,
        batch_dims: int = 1,
        vectorize: Vectorize = "auto",
    ) -> None:
        super().__init__()
        self.name = check_text("name", name, "a text (empty for no prefix)")
        self.local = check_flag("local", local)
        why = " (how many leading dims of an output are plates of the model: 1 for rows)"
        self.batch_dims = check_count("batch_dims", batch_dims, 0, why=why)
        self.vectorize = check_choice("vectorize", vectorize, ("auto", "vmap", "loop"))
        if isinstance(module, nn.Module):
            refuse_unusable(module)
        self.module = private_copy(module)
        self._has_statistics = has_running_statistics(self.module)
        self._adopt(prior)
        self._vmap_fails = False
        self._recurrence = steps_of_recurrence(self.module)
        self._convolves = any(isinstance(part, _ConvNd) for part in self.module.modules())

    def _adopt(self, prior: Prior | JointPrior) -> None:
        """Selects the parameters, and takes all but the deterministic ones out of training."""
        names = aliases(self.module)
        parameters = dict(self.module.named_parameters())
        complex_ones = [name for name, one in parameters.items() if one.is_complex()]
        if complex_ones:
            raise ArgumentError(
                f"the parameters {few_of(complex_ones)} are complex, and a prior is one of real "
                "numbers. Let the network have real and imaginary part as parameters of their own, "
                "and join them by torch.complex."
            )
        frozen = [name for name, parameter in parameters.items() if not parameter.requires_grad]
        trainable = {name: p.detach() for name, p in parameters.items() if p.requires_grad}
        prefix = f"{self.name}." if self.name else ""
        #: one prior of all stochastic parameters together, if it was given
        self.joint_prior: JointPrior | None = None
        if isinstance(prior, JointPrior):
            self.joint_prior, prior = part_for(prior, prefix, trainable)
        self._priors = ParameterPriors(prior, trainable, frozen)
        stochastic = self._priors.names
        refuse_unusable_latents(self.module, stochastic)
        self._sites = {name: prefix + name for name in stochastic}
        self._shapes = {self._sites[name]: trainable[name].shape for name in stochastic}
        self._aliases = {self._sites[name]: names[name] for name in stochastic}
        self._deterministic = tuple(name for name in trainable if name not in stochastic)
        for name in (*stochastic, *frozen):
            to_buffers(self.module, names[name])
        # Looking them up anew by their dotted names would cost as much as drawing them.
        self._owners = {name: owner_of(self.module, name) for name in stochastic}

    @property
    def site_names(self) -> tuple[str, ...]:
        """Names of the sample sites, one for each stochastic parameter tensor."""
        return tuple(self._shapes)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """
        Draws the parameters and evaluates the network with them.

        :param args: arguments of the wrapped module.
        :param kwargs: keyword arguments of the wrapped module.
        :returns: the wrapped module's output; for draws of batch shape ``(S, 1)``, every tensor in
            it with the draws in front: ``(S, *output)``.
        """
        if self._deterministic:
            # Sites are distinct within a model; so are these names, which Pyro does not check.
            emit_params(self.name or f"{type(self).__name__}({self.site_names[0]})", self.module)
        values, inputs = self._draw(), (args, kwargs)
        batch = common_batch_shape(values, self._shapes)
        several = batch.numel() > 1
        if self._has_statistics and (several or self.local):
            refuse_running_statistics(self.module)
        evaluate = (self._call, values, self._shapes, batch, inputs)
        if self.local:
            return self._attempt(partial(over_rows, *evaluate))
        if several:
            warn_inside_data_plate(batch, inputs)
            return self._attempt(partial(over_draws, *evaluate, batch_dims=self.batch_dims))
        flat = {site: value.reshape(self._shapes[site]) for site, value in values.items()}
        return self._call(flat, args, kwargs)

    def init_to_module(self, site: dict[str, Any]) -> Tensor:
        """
        Starts a guide at the wrapped module's own (pretrained) values: an ``init_loc_fn``.

        Other sites, and values that the prior excludes, get Pyro's ``init_to_median``.

        :param dict site: a site of a trace.
        :returns: the site's first value, of the shape of the site.

        Example::

            guide = AutoNormal(model, init_loc_fn=net.init_to_module)
        """
        names = self._aliases.get(site["name"])
        if names:
            value = self._value(names[0]).expand(site["fn"].shape()).clone()
            if bool(site["fn"].support.check(value).all()):
                return value
        median: Tensor = init_to_median(site)
        return median

    def extra_repr(self) -> str:
        """What is random in this module, for ``repr``."""
        weights = sum(shape.numel() for shape in self._shapes.values())
        parts = [f"name={self.name!r}"] if self.name else []
        parts.append(f"stochastic: {len(self._shapes)} tensors with {weights} weights")
        if self._deterministic:
            parts.append(f"deterministic: {len(self._deterministic)} tensors")
        return ", ".join([*parts, f"local={self.local}"])

    # ------------------------------------------------------------------ the draws and the network

    def _value(self, name: str) -> Tensor:
        """The wrapped module's value of a stochastic parameter, shape ``P``."""
        owner, attribute = self._owners[name]
        value: Tensor = getattr(owner, attribute)
        return value

    def _draw(self) -> dict[str, Tensor]:
        """One sample statement for each stochastic parameter; values ``(*B, *P)`` by site name."""
        own = {name: self._value(name) for name in self._sites}
        values = {}
        joint = self.joint_prior
        with nullcontext() if joint is None else joint.replacing():
            for name, prior in self._priors.fitted(own).items():
                infer: Any = {"implicit_module_value": own[name].detach()}  # for guides' starts
                values[self._sites[name]] = pyro.sample(self._sites[name], prior, infer=infer)
        return values

    def _call(
        self, values: dict[str, Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The network with one value ``P`` for each site; tied parameters get the same one."""
        parameters = {name: values[site] for site, names in self._aliases.items() for name in names}
        with self._recurrence():
            if torch.jit.is_tracing():  # NUTS(model, jit_compile=True); functional_call refuses
                with _in_place_of(self.module, parameters):
                    return self.module(*args, **kwargs)
            return functional_call(self.module, parameters, args, kwargs, tie_weights=False)

    def _attempt(self, evaluate: Callable[..., Any]) -> Any:
        """Evaluates by vmap or a loop, whichever is asked for or works."""
        if self.vectorize != "auto":
            return evaluate(how=self.vectorize)
        if self._vmap_fails or self._is_faster_in_a_loop():
            return evaluate(how="loop")
        try:
            return evaluate(how="vmap")
        except (ImplicitError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        output = evaluate(how="loop")  # when this fails too, its error is the user's own
        self._vmap_fails = True
        warn(
            f"torch.func.vmap cannot evaluate {type(self.module).__name__} with batched "
            f"parameters, so from now on a loop over the draws does it (vectorize='loop' says so "
            f"without a warning). The reason was {reason}"
        )
        return output

    def _is_faster_in_a_loop(self) -> bool:
        """Whether draws convolve on a CPU, where groups take longer than several convolutions."""
        if not self._convolves or self.local:
            return False
        return self._value(next(iter(self._owners))).device.type == "cpu"


@contextmanager
def _in_place_of(module: nn.Module, values: dict[str, Tensor]) -> Iterator[None]:
    """Tensors in place of the parameters and buffers of a module, which are put back."""
    kept: list[tuple[dict[str, Any], str, Any]] = []
    for name in values:
        path, _, leaf = name.rpartition(".")
        owner = module.get_submodule(path)
        store: Any = owner._parameters if leaf in owner._parameters else owner._buffers
        kept.append((store, leaf, store[leaf]))
    try:
        for (store, leaf, _), value in zip(kept, values.values(), strict=True):
            store[leaf] = value
        yield
    finally:
        for store, leaf, before in kept:
            store[leaf] = before
