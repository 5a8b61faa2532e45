"""A LightningModule over any model, guide and objective."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from pyro.infer.util import is_validation_enabled
from torch import Tensor, nn

from pyro_implicit._checks import check_count, check_seed
from pyro_implicit._plain import as_state_error
from pyro_implicit._random import (
    RandomStream,
    plain_state,
    state_from_plain,
    write_random_state,
)
from pyro_implicit._warn import warn
from pyro_implicit.exceptions import NonFiniteError, StateError
from pyro_implicit.guides.since_fit import forget_fit, remember_fit
from pyro_implicit.handlers.looks.unseen_run import unseen_run
from pyro_implicit.inference.log_predictive_density import (
    NothingToScore,
    log_predictive_density,
)
from pyro_implicit.objectives.gradients import all_finite, names_of_non_finite
from pyro_implicit.training.fitting.checks.first_look import explained_steps, first_look
from pyro_implicit.training.fitting.checks.plate_sizes import check_plate_sizes, is_pyros
from pyro_implicit.training.fitting.checks.random_rows import check_random_rows
from pyro_implicit.training.lightning.anneal import Anneal
from pyro_implicit.training.lightning.arguments import (
    as_call,
    check_arguments,
    check_modules,
    check_rises,
    interval_of,
)
from pyro_implicit.training.lightning.checkpoint_io import AtomicCheckpointIO
from pyro_implicit.training.lightning.checkpoint_state import (
    CHECKPOINT_KEY,
    FORMAT_VERSION,
    check_finite_to_save,
    check_header,
    check_modules_fit,
    check_settings,
    settings_of,
)
from pyro_implicit.training.lightning.checkpoint_training import (
    check_callbacks,
    check_loops,
    check_training,
)
from pyro_implicit.training.lightning.loop_state import (
    accumulated_gradients,
    check_gradients,
    continue_loops,
    normalise_loops,
    restore_gradients,
)
from pyro_implicit.training.lightning.optional import pytorch
from pyro_implicit.training.lightning.processes import gather, share_critics
from pyro_implicit.training.lightning.warm_up import (
    another_batch,
    check_copies,
    evaluate_once,
    first_batch,
    sizes_of_batches,
)

__all__ = ["LightningVI"]

_VALIDATION_SEED = 0


class LightningVI(pytorch.LightningModule):
    """
    Fits a guide to a model with Lightning.

    Progress bar, loggers, early stopping, checkpoints, resume, gradient clipping, mixed precision
    and several devices are the Trainer's::

        vi = LightningVI(model, guide, objective, optimizer=partial(torch.optim.Adam, lr=3e-3))
        checkpoints = ModelCheckpoint("run", every_n_train_steps=500, save_last=True)
        trainer = Trainer(max_steps=100_000, gradient_clip_val=10.0, callbacks=[checkpoints])
        trainer.fit(vi, ResumableLoader(data, batch_size=256, shuffle=True), ckpt_path="last")

    (For a bare loop use ``SVI`` or ``objective(model, guide)``.)

    **Batches.** Those of any ``DataLoader``: a tuple or list is taken as the model's arguments, a
    dict as its keyword arguments, anything else as its one argument; override
    :meth:`batch_to_args` for other ones (of a :meth:`forward` of your own, whose arguments are not
    the model's, no batch is looked at beforehand, and validation scores all that it hands on to
    ``super().forward``). Before the optimiser is made, the first batch is
    run through guide, model and objective, so that what is made lazily exists.

    **Scale.** The model's plate scales a minibatch: ``plate("data", N, subsample_size=len(x))``
    with ``N`` the size of the *whole* data set, in one process or in many. DDP averages gradients,
    so that ``k`` processes with batches of ``b`` give the gradient of one batch of ``k b``; nothing
    is to be multiplied or divided.

    **Random numbers.** The loss draws from a stream of its own, seeded with ``seed + rank``:
    processes have equal parameters and different noise, and neither validation nor a callback
    changes a fit. It is saved, as is the global random state of each process.

    **Resume.** Checkpoints hold parameters, optimiser, schedules, the objective's own state (a
    critic with its optimiser), accumulated gradients and random states; they are written whole or
    not at all, never with a parameter that is not finite, and read only if no bit has changed, with
    ``weights_only=True``
    (:class:`~pyro_implicit.training.lightning.checkpoint_io.AtomicCheckpointIO`, which takes the
    place of Lightning's default here). With a :class:`~pyro_implicit.training.ResumableLoader` a
    run that goes on from any of them, made after a step, a validation or an epoch, ends, on the
    CPU, in the same bits as one that was never stopped; with a plain ``DataLoader`` that holds for
    checkpoints made at the end of an epoch. A validation that was due at the very step of the
    checkpoint is not run again, so that a schedule by a monitored value misses that one. All is
    checked before anything is loaded; other arguments of the objective are warned of.

    **A critic** (:class:`~pyro_implicit.AdversarialELBO`) is trained by its own optimiser once per
    training step, never in validation; several processes average its gradients.

    **Logs.** ``train_loss`` and the objective's terms at each step; with validation data
    ``val_log_predictive``, the mean over data of the log predictive density, NaN if all of them are
    masked (of several loaders ``val_log_predictive/dataloader_idx_0``, ...): monitor it
    (``EarlyStopping("val_log_predictive", mode="max")``), always with the same draws.

    **Averages of weights** (``StochasticWeightAveraging``, ``EMAWeightAveraging``) copy the module
    before it has seen a batch: call :meth:`warm_up` first, else they are refused.

    All particles' graphs are alive at once, unlike in ``SVI`` with looped particles.

    :param model: a Pyro model: a function, or better a module (``PyroModule``), whose parameters
        and buffers are then trained, moved and saved along.
    :param guide: a guide that is a module.
    :param objective: an objective with ``differentiable_loss``, of this package or of Pyro.
    :param optimizer: from parameters to a ``torch.optim.Optimizer``; by default Adam at 1e-3.
    :param lr_scheduler: from the optimiser to a schedule of ``torch.optim.lr_scheduler``; a
        ``ReduceLROnPlateau`` watches ``val_log_predictive``, which rises, so that it needs
        ``mode="max"``.
    :param str lr_scheduler_interval: when it is stepped: after each training ``"step"`` (the
        default) or each ``"epoch"`` (that of a ``ReduceLROnPlateau``).
    :param modules: further modules that the model uses, such as the
        :class:`~pyro_implicit.BayesianModule` of a model that is a function.
    :param int num_val_samples: draws for validation.
    :param int seed: of the training noise; by default a number drawn when training starts, the same
        in all processes.
    :param example: a batch for the warm-up, or all data, where it is not to be, or cannot be, read
        from the training loader. Batches of a loader whose rows are numbered are looked at besides.
    :raises ArgumentError: for a guide that is no module, something else than a function for the
        optimiser, or other values outside of these.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        guide: nn.Module,
        objective: Any,
        *,
        optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] | None = None,
        lr_scheduler: Callable[[torch.optim.Optimizer], Any] | None = None,
        lr_scheduler_interval: str | None = None,
        modules: nn.Module | Sequence[nn.Module] = (),
        num_val_samples: int = 32,
        seed: int | None = None,
        example: Any = None,
    ) -> None:
        check_arguments(model, guide, objective, optimizer, lr_scheduler, lr_scheduler_interval)
        num_val_samples = check_count("num_val_samples", num_val_samples)
        seed = None if seed is None else check_seed("seed", seed)
        super().__init__()
        self.model = model
        self.guide = guide
        self.objective = objective
        self.other_modules = nn.ModuleList(check_modules(modules))
        self.num_val_samples = num_val_samples
        self.seed = seed
        self._optimizer = optimizer or partial(torch.optim.Adam, lr=1e-3)
        self._lr_scheduler = lr_scheduler
        self._lr_scheduler_interval = lr_scheduler_interval
        self._example = [example]  # in a list: it is no part of the module
        self._is_warm = False
        #: what to say of its batch if that is one of several
        self._of_several: Any = None
        self._last: list[Any] = []  # what the model was given in the last step
        self._asked: list[Any] | None = None  # what a forward of one's own hands on, if asked
        self._noise: RandomStream | None = None
        self._header: dict[str, Any] | None = None  # of a checkpoint whose rest is still to load
        self._hooks: list[Any] = []
        # batches done in the epoch that a resume begins in, gradients accumulated there
        self._resumed: tuple[int, Any] | None = None

    # ---- what a subclass may change

    def batch_to_args(self, batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """
        Turns a batch of the loader into arguments of model and guide.

        :param batch: what the loader gives, on the right device.
        :returns: arguments and keyword arguments of model and guide.
        """
        if isinstance(batch, dict):
            return (), dict(batch)
        return (tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)), {}

    def configure_optimizers(self) -> Any:
        """
        See Lightning.

        :raises ArgumentError: for a schedule that waits for the validation score to fall, or for
            one before there is any.
        :raises StateError: if there is nothing to train.
        """
        parameters = self._trained()
        if not parameters:
            raise StateError(
                "there is no parameter to train: the guide is not built yet. Call "
                "vi.warm_up(batch), or train with Trainer.fit, which does."
            )
        optimizer = self._optimizer(parameters)
        if self._lr_scheduler is None:
            return optimizer
        scheduler = self._lr_scheduler(optimizer)
        check_rises(scheduler)
        schedule = {
            "scheduler": scheduler,
            "interval": interval_of(scheduler, self._lr_scheduler_interval),
            "monitor": "val_log_predictive",
        }
        return {"optimizer": optimizer, "lr_scheduler": schedule}

    # ---- training and validation

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The loss, to be differentiated, at some arguments of the model."""
        if self._asked is not None:
            self._asked.append((args, kwargs))
            return torch.zeros((), device=self.device)  # a loss, of which nobody asks the value
        self._last = [args, kwargs]
        return self.objective.differentiable_loss(self.model, self.guide, *args, **kwargs)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Takes one batch; see Lightning."""
        args, kwargs = self._arguments_of(batch)
        self._last = [args, kwargs]
        with self._explained(args, kwargs), self._stream:
            loss: Tensor = self(*args, **kwargs)
        now: Any = {"on_step": True, "on_epoch": False, "batch_size": 1}
        self.log("train_loss", loss.detach(), prog_bar=True, **now)
        terms = getattr(self.objective, "last_terms", {})
        self.log_dict({f"train_{name}": value for name, value in terms.items()}, **now)
        return loss

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """
        Stops at gradients that are not finite, with Pyro's validation on (its default).

        Under a gradient scaler, which leaves such steps out by itself, they are left to it.

        :raises NonFiniteError: naming parameters; none has changed then, and no gradient is kept.
        """
        scaled = getattr(self.trainer.precision_plugin, "scaler", None) is not None
        if scaled or not is_validation_enabled():
            return
        trained = [p for p in self.parameters() if p.grad is not None]
        if all_finite([p.grad for p in trained if p.grad is not None]):
            return
        names = names_of_non_finite(trained, {id(p): name for name, p in self.named_parameters()})
        if not names:
            return
        for parameter in trained:
            parameter.grad = None
        raise NonFiniteError(
            f"gradients are not finite, those of {names}, in training step "
            f"{self.trainer.global_step}. No parameter was changed and no gradient is kept. Common "
            "causes: a square root, norm or logarithm at 0, also on the side that torch.where "
            "leaves out; Trainer(detect_anomaly=True) shows the line."
        )

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """
        Logs the score of one validation batch; see Lightning.

        Of several loaders each has a score of its own, ``val_log_predictive/dataloader_idx_0``.

        :raises StateError: if a :meth:`forward` of your own does not call that of this class, so
            that nobody knows what the model is to be scored with.
        """
        draws = {"num_samples": self.num_val_samples, "seed": _VALIDATION_SEED}
        values = []
        for args, kwargs in self._given_to_model(*self._arguments_of(batch)):
            try:
                found = log_predictive_density(self.model, self.guide, *args, **draws, **kwargs)
            except NothingToScore:  # in this batch; the mean is over data, and it has none
                continue
            values.append(found)
        count = sum(len(one) for one in values)
        mean = torch.cat(values).mean() if count else torch.zeros((), device=self.device)
        over_epoch: Any = {"on_epoch": True, "sync_dist": True, "batch_size": count}
        self.log("val_log_predictive", mean, prog_bar=True, **over_epoch)

    def _arguments_of(self, batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return as_call(self.batch_to_args(batch))

    def _given_to_model(self, args: Any, kwargs: Any) -> list[tuple[Any, Any]]:
        """What a batch's arguments become on the way to the model, once or in several parts."""
        if not self._has_own_forward:
            return [(args, kwargs)]
        asked: list[tuple[Any, Any]] = []
        self._asked = asked
        try:
            with unseen_run(), torch.no_grad():
                self(*args, **kwargs)
        finally:
            self._asked = None
        if asked:
            return asked
        raise StateError(
            f"{type(self).__name__} has a forward of its own that does not call super().forward("
            "...), so that nobody knows what the model is given, and validation would score the "
            "batch as it comes. Call that, or override batch_to_args, which training and "
            "validation share, or validation_step."
        )

    def predict_step(self, batch: Any, batch_idx: int) -> None:
        """
        Lightning's predictions are made by :func:`~pyro_implicit.predict`.

        :raises StateError: always.
        """
        raise StateError(
            "Trainer.predict has no draws to tell of. Write predict(vi.model, vi.guide, x), which "
            "takes the same draws of the guide for all rows, or evaluate(vi.model, vi.guide, x, y)."
        )

    # ---- setting up

    @property
    def _stream(self) -> RandomStream:
        if self._noise is None:
            raise StateError("training noise is set up by Trainer.fit; call that.")
        return self._noise

    def warm_up(self, batch: Any) -> None:
        """
        Evaluates the objective once, without gradients, so that all lazily made parameters exist.

        ``Trainer.fit`` does it by itself.

        :param batch: as the loader gives it.
        :raises SiteError: if model or guide have parameters that are no part of this module.
        :warns UserWarning: if they call networks whose parameters are none of this module's.
        """
        self._warm_up(batch)

    @property
    def _look(self) -> dict[str, bool]:
        """How batches are looked at, see :func:`first_look`."""
        nesting = getattr(self.objective, "max_plate_nesting", 0)
        return {"in_batches": True, "in_plates": nesting == math.inf}

    @property
    def _has_own_forward(self) -> bool:
        return type(self).forward is not LightningVI.forward

    def _explained(self, args: Any, kwargs: Any) -> AbstractContextManager[None]:
        """Says of an error within what is wrong with a batch, if that is the cause."""
        if self._has_own_forward:  # which alone knows what the model is given
            return nullcontext()
        return explained_steps(self.model, self.guide, self.objective, (args, kwargs), **self._look)

    def _warm_up(self, batch: Any) -> None:
        args, kwargs = self._arguments_of(batch)
        own = getattr(self.objective, "networks", {}).values()
        with self._explained(args, kwargs):
            if not self._has_own_forward:
                first_look(self.model, args, kwargs, **self._look)
            options: Any = {"networks": own, "gradients": is_pyros(self.objective)}
            seen = evaluate_once(self, args, kwargs, self.parameters, **options)
            self._last = []
            if not self._has_own_forward:
                check_random_rows(self.model, self.guide, args, kwargs)
                if is_pyros(self.objective):
                    check_plate_sizes(self.model, self.guide, args, kwargs)
        for text in seen.warnings:
            warn(text)
        self._of_several = seen.of_several
        self._is_warm = True
        if self._header is not None:
            self._load_rest()

    def setup(self, stage: str) -> None:
        """
        Prepares model and guide for a stage of training; see Lightning.

        :raises StateError: if a callback averages weights, and has copied them before they were
            made.
        """
        AtomicCheckpointIO.replace_default(self.trainer.strategy)
        if stage != "fit":
            return
        self._noise = None
        if not self._is_warm:
            self._read_first_batch()
        sizes = None if self._of_several is None else sizes_of_batches(self.trainer)
        if sizes is not None and self._of_several(sizes):
            self._look_at_loader()  # the batch of the warm-up may have been all data
            if said := self._of_several(sizes):
                warn(said)
        self._of_several = None

    def _read_first_batch(self) -> None:
        """The warm-up, by a batch of the loader."""
        batch = self._example[0]
        with self._on_device():
            self._warm_up(self._moved(first_batch(self.trainer) if batch is None else batch))
        check_copies(self.trainer.callbacks, self)  # type: ignore[attr-defined]

    def _look_at_loader(self) -> None:
        """Learns what a batch of the loader shows, if one can be had beforehand at no cost."""
        batch = another_batch(self.trainer)
        if batch is None:
            return
        with self._on_device(), unseen_run():
            args, kwargs = self._arguments_of(self._moved(batch))
            gradients = is_pyros(self.objective)
            with self._explained(args, kwargs):
                seen = evaluate_once(self, args, kwargs, self.parameters, gradients=gradients)
        self._last, self._of_several = [], seen.of_several

    @contextmanager
    def _on_device(self) -> Iterator[None]:
        """The module where it will be trained, in the dtype and autocast of its steps."""
        precision = self.trainer.precision_plugin
        precision.convert_module(self)
        self.to(self.trainer.strategy.root_device)
        with precision.forward_context():
            yield

    def _moved(self, batch: Any) -> Any:
        """A batch as the steps get it."""
        batch = self.trainer.precision_plugin.convert_input(batch)
        return self.transfer_batch_to_device(batch, self.trainer.strategy.root_device, 0)

    def on_fit_start(self) -> None:
        """Critics are shared between processes, and the noise of each begins."""
        forget_fit(self.guide)
        self._hooks = share_critics(self.objective)
        if self._noise is None:
            start = torch.randint(2**31, ()).item() if self.seed is None else self.seed
            start = self.trainer.strategy.broadcast(start)
            self._noise = RandomStream(int(start) + self.global_rank)

    def on_train_start(self) -> None:
        """Lightning's loops go on as if they had come to where they are without a stop."""
        if self._resumed is not None:
            done, gradients = self._resumed
            continue_loops(self.trainer.fit_loop, done)
            restore_gradients(gradients, self._trained())
        self._resumed = None

    def on_train_end(self) -> None:
        """Keeps what the model is like, while all is where it was trained; see Lightning."""
        if self._last:
            remember_fit(self.model, self.guide, *self._last)

    def on_fit_end(self) -> None:
        """Ends what the fit began; see Lightning."""
        self._last = []
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    # ---- checkpoints

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """
        Adds the objective's state and the random state of all processes.

        :raises NonFiniteError: if a parameter is NaN or infinite; nothing is written then.
        """
        check_finite_to_save(self, self.objective)
        stream = self._stream
        random = {"noise": plain_state(stream.state), "outside": plain_state(stream.outside)}
        state_of = getattr(self.objective, "state_dict", dict)
        checkpoint[CHECKPOINT_KEY] = {
            "version": FORMAT_VERSION,
            "objective": type(self.objective).__name__,
            "settings": settings_of(self.objective),
            "objective_state": copy.deepcopy(state_of()),
            "optimizers": [type(optimizer).__name__ for optimizer in self.trainer.optimizers],
            "random": gather(random),
            "gradients": gather(accumulated_gradients(self.trainer, self._trained())),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """
        Checks all of the checkpoint, then loads what Lightning does not.

        :raises StateError: if it is not a checkpoint of the same model, guide, objective and
            optimiser in this format; nothing is changed then.
        """
        trainer: Any = self._trainer
        fitting = trainer is not None and trainer.state.fn == "fit"
        with as_state_error("the checkpoint"):
            header = check_header(checkpoint, type(self.objective).__name__)
            check_modules_fit(self, checkpoint.get("state_dict"), built=self._is_warm)
            random = [
                {k: state_from_plain(v) for k, v in each.items()} for each in header["random"]
            ]
            if fitting:
                check_training(self, checkpoint, header["optimizers"])
                check_gradients(header["gradients"], self._trained())
            if trainer is not None and "loops" in checkpoint:
                check_loops(checkpoint, trainer)
                check_callbacks(checkpoint, trainer)
        self._header = header
        if self._is_warm:
            self._load_rest()
        if fitting:
            self._warn_of_settings(header["settings"])
            accumulate = trainer.accumulate_grad_batches
            done = normalise_loops(checkpoint["loops"]["fit_loop"], accumulate)
            self._resumed = done, self._take_up(random, header["gradients"])

    def _warn_of_settings(self, settings: dict[str, Any]) -> None:
        callbacks = self.trainer.callbacks  # type: ignore[attr-defined]
        ours = [c for c in callbacks if isinstance(c, Anneal) and c.target is self.objective]
        check_settings(settings, self.objective, [c.attribute for c in ours])

    def _load_rest(self) -> None:
        header, self._header = self._header, None
        load = getattr(self.objective, "load_state_dict", None)
        if load is not None and header is not None:
            with as_state_error(f"the state of {type(self.objective).__name__}"):
                load(header["objective_state"])

    def _take_up(self, random: list[dict[str, Any]], gradients: list[Any]) -> Any:
        """
        Random streams where they were; new ones for another number of processes.

        :returns: gradients that were accumulated already, if any.
        """
        if len(random) != self.trainer.world_size:
            warn(
                f"the checkpoint was written by {len(random)} processes and is taken up by "
                f"{self.trainer.world_size}: training goes on with new noise, not exactly as it "
                "would have."
            )
            return None
        mine = random[self.global_rank]
        self._noise = RandomStream(0)
        self._noise.state = mine["noise"]
        write_random_state(mine["outside"])
        return gradients[self.global_rank]

    @classmethod
    def load_from_checkpoint(
        cls,
        checkpoint_path: Any,
        map_location: Any = None,
        hparams_file: Any = None,
        strict: bool | None = None,
        weights_only: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """
        See Lightning. The file is checked first, and always read with ``weights_only=True``.

        :raises StateError: if it is truncated, damaged, or no checkpoint.
        :raises ArgumentError: for ``weights_only=False``.
        """
        AtomicCheckpointIO().load_checkpoint(checkpoint_path, weights_only=weights_only)
        load = super().load_from_checkpoint
        return load(checkpoint_path, map_location, hparams_file, strict, True, **kwargs)

    def _trained(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.parameters() if parameter.requires_grad]
