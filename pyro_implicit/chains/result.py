"""Chains as a guide: draws of a posterior that go on, and can be looked at, saved and used."""

# Shape legend: C chains, T kept draws of each, m unconstrained latents.
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from pyro_implicit._checks import check_count, check_flag, check_names, check_state
from pyro_implicit._misspelt import check_misspelt
from pyro_implicit._plain import as_state_error
from pyro_implicit._progress import progress_bar
from pyro_implicit._random import mixed_seed
from pyro_implicit._warn import warn
from pyro_implicit.chains.convergence import MAX_R_HAT, agreement, effective_sizes, r_hats, warn_of
from pyro_implicit.chains.density import ChainDensity
from pyro_implicit.chains.domain import check_domain
from pyro_implicit.chains.draws_guide import DrawsGuide
from pyro_implicit.chains.kernels import kernel_from
from pyro_implicit.chains.mclmc import MCLMC, target_of
from pyro_implicit.chains.predictions import expectations
from pyro_implicit.chains.program import Program
from pyro_implicit.chains.supports import check_supports_at
from pyro_implicit.chains.tuning import check_draws, warn_of_steps
from pyro_implicit.chains.virial import virials, warn_of_virials
from pyro_implicit.chains.walk import Progress, Walk
from pyro_implicit.exceptions import StateError
from pyro_implicit.guides.latent_site import LatentSite
from pyro_implicit.guides.since_fit import moved_since_fit, share_fit
from pyro_implicit.handlers.errors.explained_errors import explained_errors
from pyro_implicit.handlers.rows.same_rows import Fingerprint

__all__ = ["Chains"]

_WARNING_OF_OTHER_DEVICE = (
    "the chains ran on another kind of device: they go on where they were, with other random "
    "numbers than they would have had there."
)
_ADVICE_ON_R_HATS = (
    "Where hidden units can change places (networks), that of weights means nothing: look at "
    "chains.predictive_r_hat(...). Else let them go on (chains.run), or start elsewhere."
)
_ADVICE_ON_PREDICTIVE_R_HATS = (
    "Predictions pool them all the same, as an ensemble does, but their spread is not the "
    "posterior's. Let them go on: chains.run(...)."
)

#: With so many draws of each chain at least, a larger r-hat is no matter of chance.
_MAX_R_HAT_BY_MIN_DRAWS = ((50, MAX_R_HAT), (10, 1.5))
#: Of many chains so few draws each, with so many of all together, tell as much as 50 draws of each:
#: the r-hat of 16 chains is up to 1.04 by chance.
_MIN_DRAWS_OF_MANY_CHAINS = 25
_MIN_DRAWS_TOGETHER = 400
_MIN_DRAWS_FOR_VIRIALS = 50  # of each chain; virials tell what r-hats cannot see
_MAX_LATENTS_FOR_R_HATS = 1000  # up to which r-hats are computed unasked
_MAX_NUMBERS_FOR_R_HATS = 5_000_000  # of all draws together


class Chains(DrawsGuide):
    """
    The chains of :func:`~pyro_implicit.refine`: a guide, and what it was made by.

    Called, it picks one of the kept draws at random, as Pyro sites: it can be used wherever a
    guide is drawn from (``predict``, ``posterior_draws``, ``log_predictive_density``, ``to_arviz``
    with real chains). It has no density, and objectives refuse it.

    Before any draw is kept the current positions count as draws: with ``num_steps=0`` these are the
    starts, so that ``refine(model, 16, *args, num_steps=0)`` is an ensemble of 16 modes.

    :param sites: the latents.
    :param torch.dtype dtype: that the model's latents have; chains may move in another.
    :param Walk walk: where the chains are.
    :param program: model and arguments, or None for chains that cannot go on.
    :param bool interrupted: whether the last run was broken off.
    """

    rows_seen: Fingerprint | None = None  # also of what was pickled before

    def __init__(
        self,
        sites: list[LatentSite],
        dtype: torch.dtype,
        walk: Walk,
        program: Program | None,
        interrupted: bool = False,
    ) -> None:
        super().__init__(sites, dtype)
        self._walk, self._program = walk, program
        #: whether the last run was broken off by Ctrl-C
        self.interrupted = interrupted
        #: how the density is evaluated (recorded, vmap or loop), once it has been
        self.how = ""
        #: sites that the model observed: what may be left out to be predicted
        self.observed: frozenset[str] = frozenset()
        #: all sites that the model had; None where that is not known
        self.sampled: frozenset[str] | None = None
        #: fingerprint of the first argument
        self.rows_seen = None

    # ---- going on

    def run(self, num_steps: int, progress: bool = True) -> Chains:
        """
        Goes on, with the same bits as one longer run of the same warm-up would have had.

        :param int num_steps: further gradients per chain.
        :param bool progress: whether to show a progress bar.
        :returns: itself.
        :raises ArgumentError: for bad values, or too few steps for a draw.
        :raises SiteError: if the chains are where the model has no density.
        :raises StateError: if the chains were loaded without a model, or are a part of others.
        :warns UserWarning: if the step size does not suit the posterior; if the chains have not
            mixed, see :func:`~pyro_implicit.refine`; if parameters or running
            statistics of the model were moved since then, so that they go on with another density.
        """
        num_steps = check_count("num_steps", num_steps)
        check_flag("progress", progress)
        if "gradient" not in self._walk.progress.state:
            raise StateError(
                "these are one chain of chains.split(), which cannot go on without the others: let "
                "all go on, chains.run(...), and split them again."
            )
        if self._program is None:
            raise StateError(
                "these chains were loaded without a model, so they cannot go on. Write "
                "Chains.from_state_dict(state, model, *args) with the arguments that they had."
            )
        for text in moved_since_fit(self):
            warn(text)
        position = self._walk.progress.state["u"]
        density = self._program.density(self.sites, position.dtype)
        with density.ready(position):
            self._run(density, num_steps, progress)
        if not self.interrupted:
            check_domain(self._program, self.sites, self.unconstrained)
        return self

    def _run(self, density: ChainDensity, num_steps: int, progress: bool) -> None:
        walk = self._walk
        total = walk.target + num_steps
        begin = walk.progress.num_steps
        with progress_bar(shown=progress, total=total, initial=begin, desc="chains") as bar:
            self.interrupted = walk.advance(density, num_steps, bar)
        self.how = density.how
        if not self.interrupted and walk.target > walk.num_warmup:
            check_draws(self.num_draws, walk.num_warmup, self.num_steps, walk.kernel.thin)
            warn_of_steps(self.sample_stats, self.settings, self.by_chain.shape[-1])
        if not self.interrupted and self._program is not None:
            given = self._program
            check_supports_at(given.model, self.sites, self.unconstrained, given.args, given.kwargs)
        if not self.interrupted and self._is_judged and not self._warn_of_disagreement():
            self._warn_of_bias(density)

    @property
    def _is_judged(self) -> bool:
        """Of weights nothing is said: those of equivalent networks differ."""
        return self.num_chains > 1 and self._is_small and not self._has_layers

    def _warn_of_disagreement(self) -> bool:
        """Whether there was reason to."""
        limit = next(
            (limit for draws, limit in _MAX_R_HAT_BY_MIN_DRAWS if self.num_draws >= draws), None
        )
        if (
            self.num_draws >= _MIN_DRAWS_OF_MANY_CHAINS
            and self.num_draws * self.num_chains >= _MIN_DRAWS_TOGETHER
        ):
            limit = MAX_R_HAT
        if limit is None:
            return False
        return warn_of("latents", r_hats(self.draws), _ADVICE_ON_R_HATS, limit)

    def _warn_of_bias(self, density: ChainDensity) -> None:
        """Looks at the gradients at some of the draws, which are not counted."""
        kernel, draws = self._walk.kernel, self.by_chain
        if (
            not isinstance(kernel, MCLMC)
            or self.num_chains < 8
            or self.num_draws < _MIN_DRAWS_FOR_VIRIALS
        ):
            return
        some = draws[:, :: self.num_draws // _MIN_DRAWS_FOR_VIRIALS]
        num_gradients = density.num_gradients
        try:
            gradients = torch.stack([density(u)[1] for u in some.unbind(1)], 1)
        except KeyboardInterrupt:
            return  # the chains are whole
        finally:
            density.num_gradients = num_gradients
        found = virials(some, gradients, [site.numel for site in self.sites])
        target = target_of(kernel, draws.shape[-1])
        warn_of_virials(found, [site.name for site in self.sites], target)

    @property
    def _is_small(self) -> bool:
        """Whether r-hats of all latents take a second at most."""
        chains, draws, latents = self.by_chain.shape
        return (
            latents <= _MAX_LATENTS_FOR_R_HATS
            and chains * draws * latents <= _MAX_NUMBERS_FOR_R_HATS
        )

    @property
    def _has_layers(self) -> bool:
        """Whether most latents are in several matrices, as the weights of a network are."""
        matrices = [site.numel for site in self.sites if site.event_dim >= 2]
        return len(matrices) > 1 and 2 * sum(matrices) >= sum(site.numel for site in self.sites)

    # ---- what they are

    @property
    def model(self) -> Callable[..., Any] | None:
        """The model that they sample; None if they were loaded without it."""
        return None if self._program is None else self._program.model

    @property
    def num_chains(self) -> int:
        """How many chains there are."""
        return len(self._walk.progress.state["u"])

    @property
    def num_draws(self) -> int:
        """Draws of each chain that are kept."""
        return len(self._walk.kept)

    @property
    def num_steps(self) -> int:
        """Gradients that each chain has spent, the warm-up included, the search for modes not."""
        return self._walk.progress.num_steps

    @property
    def num_gradients(self) -> int:
        """Gradients spent in all: those of every chain, and of the search for modes."""
        return self._walk.progress.num_gradients

    @property
    def by_chain(self) -> Tensor:
        """Unconstrained draws, shape ``(C, T, m)``; the current positions before any is kept."""
        if not self._walk.kept:
            return self._walk.progress.state["u"][:, None]
        return torch.stack(self._walk.kept, 1)

    @property
    def unconstrained(self) -> Tensor:
        """All draws, chain after chain, shape ``(C * T, m)``."""
        return self.by_chain.flatten(0, 1)

    @property
    def draws(self) -> dict[str, Tensor]:
        """Constrained draws by site, shape ``(C, T, *site_shape)``."""
        return self.constrained(self.by_chain)

    @property
    def sample_stats(self) -> dict[str, Tensor]:
        """
        What happened at each kept draw, shape ``(C, T)`` each.

        ``lp``: the log-density in the unconstrained space. ``energy_error`` and ``step_size``, of
        the last step. ``diverging``: whether a step since the draw before was refused, or (HMC) had
        an enormous energy error. HMC: ``acceptance_rate`` and ``n_steps`` too.
        """
        steps = self._walk.statistics
        return (
            {key: torch.stack([one[key] for one in steps], 1) for key in steps[0]} if steps else {}
        )

    @property
    def settings(self) -> dict[str, Any]:
        """The kernel's settings and the length of the warm-up, as plain values."""
        return {**self._walk.kernel.describe(), "num_warmup": self._walk.num_warmup}

    def split(self) -> list[Chains]:
        """
        Each chain as a guide of its own, for :class:`~pyro_implicit.EnsembleGuide`.

        :returns: as many as there are chains; they cannot go on, and nor can what is saved of them.
        """
        parts = []
        for chain in range(self.num_chains):
            one = slice(chain, chain + 1)
            now = self._walk.progress
            state = {"u": now.state["u"][one]}  # the rest belongs to all chains
            walk = Walk(
                self._walk.kernel,
                self._walk.num_warmup,
                self._walk.generator,
                Progress(state, now.random, 0, now.num_steps, now.num_after, now.num_kept),
                now.num_steps,
                [u[one] for u in self._walk.kept],
                [{k: v[one] for k, v in stats.items()} for stats in self._walk.statistics],
            )
            parts.append(Chains(self.sites, self.dtype, walk, None))
            parts[-1].observed, parts[-1].rows_seen = self.observed, self.rows_seen
            share_fit(self, parts[-1])
        return parts

    # ---- whether they agree

    def r_hat(self) -> dict[str, Tensor]:
        """
        The rank-normalised split r-hat of each latent, with a warning above 1.1.

        Where a posterior has equivalent modes, as that of a network whose hidden units can change
        places, each chain is in one of its own, and r-hats of weights mean nothing: then only
        those of predictions do (:meth:`predictive_r_hat`).

        :returns: by site, shape ``(*site_shape,)``.
        :raises StateError: for fewer than 4 draws, or a single chain.

        Source: `Rank-Normalization, Folding, and Localization`, A. Vehtari, A. Gelman, D. Simpson,
        B. Carpenter, P.-C. Bürkner; computed by ArviZ.
        """
        found = r_hats(self.draws)
        warn_of("latents", found, _ADVICE_ON_R_HATS)
        return found

    def effective_size(self) -> dict[str, Tensor]:
        """
        The bulk effective sample size of each latent, of all chains together.

        :returns: by site, shape ``(*site_shape,)``.
        :raises StateError: for fewer than 4 draws.
        """
        return effective_sizes(self.draws)

    def predictive_r_hat(
        self,
        *args: Any,
        sites: Iterable[str] | None = None,
        num_samples: int = 1000,
        **kwargs: Any,
    ) -> dict[str, Tensor]:
        """
        The r-hat of what each draw predicts for each datum, with a warning above 1.1.

        What is compared is the expectation of the observation under each draw (its mean, or the
        probabilities of the classes), without observation noise.

        :param args: arguments of the model, such as the inputs of test rows.
        :param sites: names of the sites to compare, deterministic ones included; by default all
            that are neither latent nor deterministic.
        :param int num_samples: at most so many draws of all chains together are compared.
        :param kwargs: keyword arguments of the model.
        :returns: by site, shape ``(rows, ...)``.
        :raises ArgumentError: for arguments that the model does not take, or lacks.
        :raises SiteError: if there is nothing to compare.
        :raises StateError: for fewer than 4 draws, a single chain, or chains without a model.
        """
        found = r_hats(self._predictions(self.predictive_r_hat, args, kwargs, sites, num_samples))
        warn_of("predictions", found, _ADVICE_ON_PREDICTIVE_R_HATS)
        return found

    def predictive_effective_size(
        self,
        *args: Any,
        sites: Iterable[str] | None = None,
        num_samples: int = 1000,
        **kwargs: Any,
    ) -> dict[str, Tensor]:
        """
        The bulk effective sample size of what is predicted for each datum.

        :param args: arguments of the model, such as the inputs of test rows.
        :param sites: names of the sites to look at, see :meth:`predictive_r_hat`.
        :param int num_samples: at most so many draws of all chains together are looked at.
        :param kwargs: keyword arguments of the model.
        :returns: by site, shape ``(rows, ...)``.
        :raises ArgumentError: for arguments that the model does not take, or lacks.
        :raises SiteError: if there is nothing to look at.
        :raises StateError: for fewer than 4 draws, or chains without a model.
        """
        return effective_sizes(
            self._predictions(self.predictive_effective_size, args, kwargs, sites, num_samples)
        )

    def _predictions(
        self, asked: Any, args: Any, kwargs: Any, sites: Iterable[str] | None, num_samples: int
    ) -> dict[str, Tensor]:
        num_samples = check_count("num_samples", num_samples)
        sites = None if sites is None else check_names("sites", sites)
        if self._program is None:
            raise StateError(
                "these chains have no model to predict with. Write "
                "Chains.from_state_dict(state, model, *args)."
            )
        model = self._program.model
        check_misspelt(asked, model, kwargs)
        draws, _ = self.draws_by_chain(num_samples)
        with explained_errors(args, kwargs):
            return expectations(model, draws, args, kwargs, sites)

    def draws_by_chain(self, num_samples: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """
        Evenly spaced draws of each chain, and what happened at them.

        :param int num_samples: at most so many of all chains together, and one of each at least.
        :returns: constrained draws by site, shape ``(C, T', *site_shape)``, and statistics by name,
            ``(C, T')``.
        :raises ArgumentError: unless it is a positive integer.
        """
        num_samples = check_count("num_samples", num_samples)
        by_chain = self.by_chain
        there = by_chain.shape[1]
        count = min(max(num_samples // self.num_chains, 1), there)
        places = [(i + 1) * there // count - 1 for i in range(count)]
        stats = {name: value[:, places] for name, value in self.sample_stats.items()}
        return self.constrained(by_chain[:, places]), stats

    def __str__(self) -> str:
        settings = self.settings
        lines = [
            f"{self.num_chains} chains of {settings['kernel']}, {self.num_draws} draws each "
            f"after a warm-up of {settings['num_warmup']} of {self.num_steps} gradients; "
            f"{self.num_gradients} in all"
        ]
        if self.interrupted:
            lines.append("interrupted: chains.run(...) goes on")
        if self.sample_stats:
            lines.append(self._steps_in_words())
        if self._has_layers:
            lines.append("whether they agree: chains.predictive_r_hat(x_test)")
        elif self._is_small:
            lines.append(agreement(self.draws))
        else:
            lines.append("whether they agree: chains.r_hat()")
        return "\n".join(line for line in lines if line)

    def _steps_in_words(self) -> str:
        """Step size, how exact the steps are by the kernel's own measure, and how many failed."""
        stats = self.sample_stats
        size, refused = stats["step_size"].double().mean(), stats["diverging"].bool()
        if "acceptance_rate" in stats:
            how = f"acceptance rate {float(stats['acceptance_rate'].double().mean()):.2g}"
        else:  # of a refused step the error may be anything
            error = stats["energy_error"].double()[~refused]
            per_latent = float(error.square().mean()) / self.by_chain.shape[-1]
            how = f"squared energy error per latent {per_latent:.2g}"
        return (
            f"step size {float(size):.3g}, {how}, {int(refused.sum())} draws after a refused step"
        )

    # ---- saving

    def state_dict(self) -> dict[str, Any]:
        """
        All that is needed to go on or to draw, as tensors and plain values.

        :returns: for :func:`~pyro_implicit.saving.save_state`; :meth:`from_state_dict` reads it.
        """
        walk, now = self._walk, self._walk.progress
        return {
            "chains": 1,
            "sites": [site.to_state() for site in self.sites],
            "dtype": str(self.dtype).removeprefix("torch."),
            "kernel": walk.kernel.describe(),
            "num_warmup": walk.num_warmup,
            "target": walk.target,
            "interrupted": self.interrupted,
            "observed": sorted(self.observed),
            "sampled": None if self.sampled is None else sorted(self.sampled),
            "progress": {**vars(now), "state": dict(now.state)},
            "kept": torch.stack(walk.kept, 1) if walk.kept else None,
            "statistics": self.sample_stats,
        }

    @classmethod
    def from_state_dict(
        cls,
        state: Mapping[str, Any],
        model: Callable[..., Any] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Chains:
        """
        Chains as they were saved.

        :param dict state: of :meth:`state_dict`.
        :param model: the model that they sampled, to go on; None for chains to draw from.
        :param args: its arguments, the same data.
        :param kwargs: its keyword arguments.
        :returns: chains that go on with the same bits, on the kind of device that they ran on.
        :raises StateError: if it is no such state, or the model has other latents.
        :warns UserWarning: if they go on on another kind of device, with other random numbers.
        """
        state = check_state(cls, state)
        with as_state_error("the state of chains"):
            if state["chains"] != 1:
                raise StateError(f"the state has version {state['chains']}; expected 1.")
            progress = Progress(**state["progress"])
            generator, is_other = _generator_of(progress)
            kept = [] if state["kept"] is None else list(state["kept"].unbind(1))
            columns = {name: value.unbind(1) for name, value in state["statistics"].items()}
            stats = [{n: c[i] for n, c in columns.items()} for i in range(len(kept))]
            kernel = kernel_from(state["kernel"])
            walk = Walk(
                kernel, state["num_warmup"], generator, progress, state["target"], kept, stats
            )
            sites = [LatentSite.from_state(site) for site in state["sites"]]
            program = None if model is None else Program(model, args, kwargs)
            dtype = getattr(torch, state["dtype"])
            chains = cls(sites, dtype, walk, program, bool(state["interrupted"]))
            chains.observed = frozenset(map(str, state.get("observed", ())))
            met = state.get("sampled")  # which older states do not have
            chains.sampled = None if met is None else frozenset(map(str, met))
        if program is not None:
            program.check_latents(sites)
            if is_other:
                warn(_WARNING_OF_OTHER_DEVICE)
        return chains


def _generator_of(progress: Progress) -> tuple[torch.Generator, bool]:
    """The random numbers that chains go on with, and whether they are those of another device."""
    generator, saved = torch.Generator(progress.state["u"].device), progress.random.cpu()
    is_other = saved.shape != generator.get_state().shape
    if is_other:  # the saved ones say where a new stream begins
        generator.manual_seed(mixed_seed(*saved.tolist()))
    else:
        generator.set_state(saved)
    return generator, is_other
