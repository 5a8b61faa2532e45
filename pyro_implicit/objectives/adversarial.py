r"""
Adversarial (prior-contrastive) variational inference.

References

- `Adversarial Variational Bayes`, L. Mescheder, S. Nowozin, A. Geiger, ICML 2017. Section 3.
- `Variational Inference using Implicit Distributions`, F. Huszar, 2017.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from pyro.infer.util import is_validation_enabled
from torch import Tensor, nn
from torch.func import functional_call

from pyro_implicit._checks import check_count, check_instance, check_state
from pyro_implicit.exceptions import ArgumentError, NonFiniteError, ShapeError, StateError
from pyro_implicit.objectives.contrastive import ContrastiveELBO
from pyro_implicit.objectives.critic import Critic
from pyro_implicit.objectives.gradients import all_finite
from pyro_implicit.objectives.implicit_site import ImplicitSite

__all__ = ["AdversarialELBO"]

_SATURATED_ACCURACY = 0.95  # of a critic whose value and gradient say nothing any more
_DECAY_OF_MEAN_ACCURACY = 0.9


class AdversarialELBO(ContrastiveELBO):
    r"""
    Adversarial variational Bayes: a network that tells draws apart estimates the divergence.

    A *critic* ``T`` is trained to tell draws of the guide from draws of what it is compared with;
    the mean of ``T`` over draws of the guide estimates ``KL(q || p)`` (Mescheder, Nowozin and
    Geiger 2017; Huszar 2017).

    Whenever the objective is evaluated with gradients enabled, the critic first takes
    ``num_critic_steps`` steps of **its own optimiser** on new draws; the loss that comes out has no
    gradient with respect to it. That holds for ``SVI`` and for ``objective(model, guide)`` in a
    plain torch loop alike; the latter shows the critic's parameters in ``parameters()`` and
    ``state_dict()``, from the first evaluation on.

    **Its limits.** With one inner step the critic lags behind the guide, and the fit drifts. With
    ``contrast="prior"`` and more than some tens of latents the critic *saturates*: it tells all
    draws apart, its gradient says nothing, and training is as if there were no KL term. A warning
    tells when its accuracy exceeds 0.95; :attr:`critic_accuracy` has the number (0.5: it cannot
    tell). With the default adaptive contrast it stays lower where a full covariance can be had
    (``num_samples`` of four times the latents or more), and what it misses of a shape that is not
    Gaussian is an entropy that is too large (with heavy tails by any amount, which a warning
    tells, too); on a network of 105 weights, with 200 draws, it
    saturated as well.

    Example::

        guide = HyperNetworkGuide(model)
        objective = AdversarialELBO(8, num_samples=200, vectorize_particles=True)
        fit(model, guide, x, y, objective=objective, seed=0)
        objective.critic_accuracy

    Sources:

    - `Adversarial Variational Bayes`, Mescheder, Nowozin and Geiger, ICML 2017.
    - `Variational Inference using Implicit Distributions`, Huszar, 2017.

    :param int num_particles: draws for the likelihood.
    :param critic: a function from the number ``m`` of latent entries to a module from ``(n, m)`` to
        ``(n,)`` or ``(n, 1)``, or one such module for a guide with one implicit site;
        :class:`~pyro_implicit.objectives.Critic` by default. With ``contrast="adaptive"`` it sees
        standardised draws, else draws in unconstrained coordinates.
    :param int num_critic_steps: its steps per evaluation.
    :param critic_optim: a function from its parameters to a ``torch.optim.Optimizer``; Adam with a
        rate of 3e-3 by default.
    :param options: all others of :class:`~pyro_implicit.objectives.contrastive.ContrastiveELBO`.
    :raises ArgumentError: for values outside of these.
    """

    def __init__(
        self,
        num_particles: int = 1,
        *,
        critic: Callable[[int], nn.Module] | nn.Module | None = None,
        num_critic_steps: int = 5,
        critic_optim: Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer] | None = None,
        **options: Any,
    ) -> None:
        for name, value in (("critic", critic), ("critic_optim", critic_optim)):
            if value is not None and not callable(value):
                raise ArgumentError(
                    f"{name} is a {type(value).__name__}; expected a function, such as "
                    "critic=lambda m: torch.nn.Linear(m, 1) or "
                    "critic_optim=lambda parameters: torch.optim.Adam(parameters, lr=1e-3)."
                )
        super().__init__(num_particles, **options)
        self.num_critic_steps = check_count("num_critic_steps", num_critic_steps)
        self._critic = critic or Critic
        self._critic_optim = critic_optim or _adam
        self._critics = nn.ModuleList()
        self.networks["critics"] = self._critics
        self._names: list[str] = []
        self._optims: list[torch.optim.Optimizer] = []
        self._entries: dict[str, int] = {}
        self._accuracy: dict[str, Tensor] = {}

    @property
    def settings(self) -> dict[str, Any]:
        """What defines the objective, as plain values, for records."""
        critic = self._critic
        name = type(critic).__name__ if isinstance(critic, nn.Module) else _name(critic)
        return super().settings | {"critic": name, "num_critic_steps": self.num_critic_steps}

    @property
    def critics(self) -> dict[str, nn.Module]:
        """The critics by implicit site; empty before the first evaluation."""
        return dict(zip(self._names, self._critics, strict=True))

    @property
    def critic_optims(self) -> dict[str, torch.optim.Optimizer]:
        """Their optimisers by implicit site; empty before the first evaluation."""
        return dict(zip(self._names, self._optims, strict=True))

    @property
    def critic_accuracy(self) -> dict[str, float]:
        """
        The share of new draws that the critic told right, by implicit site.

        It is averaged over about the last ten evaluations.
        """
        return {name: float(value) for name, value in self._accuracy.items()}

    def estimate(self, site: ImplicitSite) -> Tensor:
        """
        Trains the site's critic if gradients are enabled, then estimates by it.

        The estimate is that of
        :meth:`~pyro_implicit.objectives.contrastive.ContrastiveELBO.estimate`.

        :raises NonFiniteError: if the critic's gradients are not finite (with Pyro's validation
            on); it keeps its parameters then, and its optimiser its state.
        """
        if torch.is_grad_enabled():
            for _ in range(self.num_critic_steps):
                self._train(site)
        return super().estimate(site)

    def divergence(self, name: str, q: Tensor, p: Tensor) -> Tensor:
        """
        See :meth:`~pyro_implicit.objectives.contrastive.ContrastiveELBO.divergence`.

        :raises ArgumentError: if ``critic`` makes no network, or ``critic_optim`` no optimiser.
        :raises ShapeError: if the critic returns another shape than one number per draw.
        :raises StateError: if the site's critic was made for a guide of another size or type, or,
            where latents are those of each row, for another number of rows. (A guide of the same
            size gets the critic as it is: make a new objective for another guide.)
        """
        critic, _ = self._critic_of(name, q)
        # copies, so that a later evaluation that trains the critic leaves this graph valid
        frozen = {key: value.detach().clone() for key, value in critic.named_parameters()}
        log_odds = _per_draw(functional_call(critic, frozen, (q,)), critic, q)
        with torch.no_grad():
            right = (log_odds > 0).to(q).mean() + (_per_draw(critic(p), critic, p) < 0).to(q).mean()
        self._record(name, right / 2)
        return log_odds.mean()  # theory/ratios.md (critic-optimum)

    # ---- the critic

    def _train(self, site: ImplicitSite) -> None:
        with torch.no_grad(), torch.autocast(site.value.device.type, enabled=False):
            q, p, _ = self.pair(site)
        critic, optim = self._critic_of(site.name, q)
        with torch.enable_grad():
            # theory/ratios.md (critic-loss)
            loss = F.softplus(-_per_draw(critic(q), critic, q)).mean()
            loss = loss + F.softplus(_per_draw(critic(p), critic, p)).mean()
        optim.zero_grad()
        grads = torch.autograd.grad(loss, list(critic.parameters()))
        if is_validation_enabled() and not all_finite(grads):
            self._refuse(site.name, critic, grads, loss)
        for parameter, grad in zip(critic.parameters(), grads, strict=True):
            parameter.grad = grad
        optim.step()
        optim.zero_grad()

    def _refuse(self, name: str, critic: nn.Module, grads: Any, loss: Tensor) -> None:
        """
        Refuses to train a critic on gradients that are not finite.

        :raises NonFiniteError: unless the gradients are finite, and only their norm was not.
        """
        named = zip(critic.named_parameters(), grads, strict=True)
        bad = [parameter for (parameter, _), grad in named if not grad.isfinite().all()]
        if bad:
            raise NonFiniteError(
                f"the critic of implicit site {name!r} has gradients that are not finite, those of "
                f"{', '.join(map(repr, bad[:3]))}, at a loss of {loss.item():.4g}; it was left as "
                "it was. Give it a lower learning rate (critic_optim=...), no layer that divides "
                "by or takes roots of what can be 0, or start the guide anew."
            )

    def _critic_of(self, name: str, q: Tensor) -> tuple[nn.Module, torch.optim.Optimizer]:
        if name not in self._names:
            self._add_critic(name, q)
        index = self._names.index(name)
        like, entries = next(self._critics[index].parameters(), q), self._entries[name]
        if (q.dtype, q.device) != (like.dtype, like.device) or q.shape[1] != entries:
            raise StateError(
                f"the critic of implicit site {name!r} was made for {entries} entries in "
                f"{like.dtype} on {like.device}; found {q.shape[1]} in {q.dtype} on {q.device}. "
                "Make a new objective for another guide; latents of each row, all of whose entries "
                "in a batch it sees together, need batches of one size: DataLoader(..., "
                "drop_last=True)."
            )
        return self._critics[index], self._optims[index]

    def _add_critic(self, name: str, q: Tensor) -> None:
        if isinstance(self._critic, nn.Module):
            if self._names:
                raise ArgumentError(
                    f"one critic module, and implicit sites {self._names[0]!r} and {name!r}: pass a"
                    " function from the number of entries to a new module, critic=lambda m: ..."
                )
            critic = self._critic
        else:
            critic = self._critic(q.shape[1])
            check_instance("critic(m)", critic, nn.Module, "a network from m entries to one number")
        critic = critic.to(q)
        optim = self._critic_optim(critic.parameters())
        check_instance(
            "critic_optim(parameters)", optim, torch.optim.Optimizer, "a torch optimiser"
        )
        self._names.append(name)  # only now, so that what fails leaves no half of a critic
        self._entries[name] = q.shape[1]
        self._critics.append(critic)
        self._optims.append(optim)

    def _record(self, name: str, accuracy: Tensor) -> None:
        before = self._accuracy.get(name, torch.full_like(accuracy, 0.5))
        now = self._accuracy[name] = (
            _DECAY_OF_MEAN_ACCURACY * before + (1 - _DECAY_OF_MEAN_ACCURACY) * accuracy
        )
        if name + ":saturated" in self._warned or not is_validation_enabled():
            return
        if float(now) > _SATURATED_ACCURACY:
            adaptive = self.contrast == "adaptive"
            remedy = "covariance='full'" if adaptive else "contrast='adaptive'"
            self._warn(
                name + ":saturated",
                f"implicit site {name!r}: the critic tells {float(now):.1%} of the draws right. It "
                "has saturated: its value says nothing of the KL divergence, nor its gradient. Use "
                f"{remedy}, or LinearisedELBO.",
            )

    # ---- saving

    def state_dict(self) -> dict[str, Any]:
        """Critics and their optimisers, to go on later where training stopped."""
        return {
            "sites": list(self._names),
            "critics": [critic.state_dict() for critic in self._critics],
            "optims": [optim.state_dict() for optim in self._optims],
            "accuracy": dict(self._accuracy),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """
        Restores what :meth:`state_dict` returned, all of it or nothing.

        The objective must have the same arguments and have been evaluated once.

        :raises StateError: if its critics are for other sites, or of another shape.
        """
        if check_state(self, state).get("sites") != self._names:
            raise StateError(
                f"the state has critics for sites {state.get('sites')}; this objective for "
                f"{self._names}. Evaluate objective.loss(model, guide, *args) once before."
            )
        for name, critic, saved in zip(self._names, self._critics, state["critics"], strict=True):
            found = {key: tuple(value.shape) for key, value in saved.items()}
            expected = {key: tuple(value.shape) for key, value in critic.state_dict().items()}
            if found != expected:
                raise StateError(
                    f"the critic of site {name!r} was saved with {found}; this one has {expected}. "
                    "Make the objective with the same critic=."
                )
        for critic, saved in zip(self._critics, state["critics"], strict=True):
            critic.load_state_dict(saved)
        for optim, saved in zip(self._optims, state["optims"], strict=True):
            optim.load_state_dict(saved)
        self._accuracy = dict(state["accuracy"])


def _adam(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=3e-3)


def _name(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _per_draw(log_odds: Tensor, critic: nn.Module, draws: Tensor) -> Tensor:
    """
    Checks that a critic returns one number for each draw.

    :raises ShapeError: unless there is one number per draw.
    """
    if log_odds.shape not in ((len(draws),), (len(draws), 1)):
        raise ShapeError(
            f"the critic {type(critic).__name__} returned shape {tuple(log_odds.shape)} for draws "
            f"of shape {tuple(draws.shape)}; expected ({len(draws)},) or ({len(draws)}, 1)."
        )
    return log_odds.reshape(-1)
