"""
LeNet on MNIST in float32 and under bfloat16 autocast: held-out scores, and finite log-determinants.

Both start at the same short MAP fit and train the same guide (MMNN "B") with LightningVI and
LanczosELBO on the same batches; ``Trainer(precision=...)`` alone differs. Log-determinants are
computed in float32 or better in either case; every step is checked for an entropy, a loss and
gradients that are finite. Scores are means over 32 draws, evaluated in float32.
"""

from __future__ import annotations

import argparse
import logging
import math
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import lightning.pytorch as pl
import pyro
import torch
from torch import Tensor
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import TensorDataset
from torchvision.transforms import InterpolationMode
from torchvision.transforms.functional import rotate

from benchmarks.common import (
    fixed_seed,
    format_table,
    mean_and_error,
    parse,
    parser,
    stopwatch,
)
from benchmarks.networks import LeNet
from benchmarks.records import write_record
from benchmarks.shared.image_fits import add_mnist_options, cut_mnist, standardised
from benchmarks.shared.image_posteriors import SETTINGS, Fits, by_weights
from benchmarks.shared.image_scores import all_scores
from benchmarks.shared.images import GUIDES, classifier
from benchmarks.shared.judged_images import Images
from benchmarks.shared.paired import pairs
from pyro_implicit import LanczosELBO, LightningVI
from pyro_implicit.training import ResumableLoader

PRECISIONS = ("32-true", "bf16-mixed")
NUM_DRAWS = 32


class _Finite(pl.Callback):
    """Counts steps, and those with something that is not finite."""

    def __init__(self) -> None:
        self.steps, self.bad, self.entropy = 0, 0, math.nan

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        terms = pl_module.objective.last_terms
        values = [*terms.values(), *(p.grad for p in pl_module.parameters() if p.grad is not None)]
        self.steps += 1
        self.bad += not all(bool(value.isfinite().all()) for value in values)
        self.entropy = float(terms["entropy"])


def fit(bench: Fits, images: Images, precision: str) -> dict[str, Any]:
    """
    :returns: scores on the test images, checks and time.
    """
    model, net = classifier(bench.start(), len(bench.x))
    noise = {name: SETTINGS[name] for name in ("init_scale", "scale")}
    pyro.set_rng_seed(bench.seed)
    guide = GUIDES[SETTINGS["guide"]](model, init_loc_fn=net.init_to_module, **noise)
    steps, finite = bench.steps(bench.epochs), _Finite()
    vi = LightningVI(
        model,
        guide,
        LanczosELBO(SETTINGS["num_particles"], num_steps=5),
        optimizer=partial(torch.optim.Adam, lr=SETTINGS["guide_lr"]),
        lr_scheduler=partial(CosineAnnealingLR, T_max=steps),
        modules=[net],
        seed=bench.seed,
    )
    trainer = pl.Trainer(
        max_steps=steps, precision=precision, callbacks=[finite], logger=False,
        enable_checkpointing=False, enable_model_summary=False,
        enable_progress_bar=not bench.quiet, accelerator="cpu", devices=1,
    )  # fmt: skip
    data = TensorDataset(bench.x, bench.y, torch.arange(len(bench.x)))
    batch = min(SETTINGS["batch_size"], len(bench.x))
    with stopwatch() as watch:
        trainer.fit(vi, ResumableLoader(data, batch_size=batch, shuffle=True, seed=bench.seed))
    checks = {"steps": finite.steps, "not finite": finite.bad, "entropy": finite.entropy}
    times = {"cpu_seconds": watch.cpu_seconds, "seconds": watch.seconds}
    with torch.no_grad():
        members = by_weights(LeNet(), [dict(guide()) for _ in range(NUM_DRAWS)])
    return {**all_scores(members, images), **checks, **times}


def _images(data: dict[str, Tensor]) -> Images:
    """To train on, and to judge by: as they come, and rotated by 60 degrees."""
    x, x_test = data["x_train"], data["x_test"]
    turned = {"60": standardised(rotate(x_test, 60, InterpolationMode.BILINEAR))}
    y, y_test = data["y_train"], data["y_test"]
    return Images(standardised(x), y, standardised(x_test), y_test, turned, {})


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the benchmark and returns the rows."""
    arguments = parse(_options(), argv)
    warnings.filterwarnings("ignore", module="lightning")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    images = _images(cut_mnist(arguments))
    rows: list[dict[str, Any]] = []
    for seed in arguments.seeds:
        bench = Fits(images, seed, arguments.epochs, arguments.quiet)
        for precision in PRECISIONS:
            with fixed_seed(seed), pyro.validation_enabled(False):
                rows.append({"precision": precision, "seed": seed} | fit(bench, images, precision))
            settings = SETTINGS | {"epochs": arguments.epochs, "num_draws": NUM_DRAWS}
            write_record("bfloat16", arguments, settings, rows)
    print(table(rows))
    return rows


#: of a row, the form of its mean and that of its error
SCORES = {
    "accuracy 0": (".3f", ".3f"),
    "nll 0": (".3f", ".3f"),
    "ece 0": (".3f", ".3f"),
    "nll 60": (".2f", ".2f"),
    "entropy": (".0f", ".0f"),
    "cpu_seconds": (".1f", ".1f"),
}


def table(rows: list[dict[str, Any]]) -> str:
    """Means and standard errors over seeds; of steps that are not finite, the number."""
    lines = []
    for precision in PRECISIONS:
        own = [row for row in rows if row["precision"] == precision]
        cells = [mean_and_error([row[key] for row in own], *form) for key, form in SCORES.items()]
        bad = f"{sum(row['not finite'] for row in own)} of {sum(row['steps'] for row in own)}"
        lines.append([precision, len(own), *cells, bad])
    return format_table(["precision", "seeds", *SCORES, "not finite"], lines)


def differences(rows: list[dict[str, Any]]) -> str:
    """Of half to single precision with the same seed."""
    keys = ("accuracy 0", "nll 0", "ece 0", "nll 60", "entropy")
    forms = {"entropy": ("+.1f", ".1f")}
    named = [row | {"method": row["precision"]} for row in rows]
    lines = []
    for names, found in pairs(named, PRECISIONS[0]):
        changes = [[row[key] - other[key] for row, other in found] for key in keys]
        cells = [
            mean_and_error(values, *forms.get(key, ("+.4f", ".4f")))
            for key, values in zip(keys, changes, strict=True)
        ]
        lines.append([*names, len(found), *cells])
    return format_table([f"less {PRECISIONS[0]}", "seeds", *keys], lines)


def _options() -> argparse.ArgumentParser:
    options = parser(__doc__ or "", seeds=range(3))
    options.add_argument("--epochs", type=float, default=1.0, help="(default: 1)")
    add_mnist_options(options, 60_000, 10_000)
    return options


if __name__ == "__main__":
    main()
