"""Variational implicit processes: the experiments of the paper, with controls."""

from __future__ import annotations

from benchmarks.benchmark import Benchmark
from benchmarks.shared.columns import BY_METHOD, UCI

_SCORES = {
    **BY_METHOD,
    "rmse": "root mean squared error",
    "nll": "mean negative log predictive density",
    "cpu_seconds": "of the fit, choices included",
}

BENCHMARKS = (
    Benchmark(
        "papers.vip.vip_synthetic",
        "How well is a noisy curve learned from 300 inputs?",
        rows="a method and a seed",
        columns={
            **_SCORES,
            "coverage": "of new observations by the central 90% interval, exact over their noise",
        },
        records={"vip_synthetic": ""},
        short="--num-steps 3 --seeds 0",
        short_settings={"num_particles": 4, "num_functions_fresh": 30, "num_draws": 10},
        figure=True,
    ),
    Benchmark(
        "papers.vip.vip_uci",
        "How do collapsed and weight-space objectives score on UCI sets, and Gaussian processes?",
        rows="a set, a method, a split and a seed",
        columns={
            **UCI,
            "steps": "by early stopping, or all; an exact GP has none",
            "rows": "that the prediction is conditioned on",
            "settings": "of what begins at a mode",
            **_SCORES,
            "coverage": "of the central 90% interval",
        },
        records={
            "vip_uci": "--double",
            "vip_uci_choice": "--choose --sets power protein wine yacht --splits 0 --methods "
            '"MC dropout" SWAG',
            "vip_uci_controls": "--sets boston concrete energy kin8nm naval power protein wine "
            "yacht --splits 0 1 2 3 4 --max-rows 500 --num-steps 300 --effort 0.2 --methods "
            '"network, collapsed" "network, alpha=0" mean-field "exact GP" "sparse GP"',
        },
        short="--sets energy --splits 0 --num-steps 2 --max-rows 30 --effort 0.0001",
        short_settings={
            "sparse GP, steps": 2,
            "peers": {"mode_steps": 2, "num_steps": 20, "num_draws": 4},
        },
        needs=("uci/energy.npz",),
    ),
    Benchmark(
        "papers.vip.vip_deep",
        "Do two implicit processes on each other predict better than one?",
        rows="a set, a method, a split and a seed",
        columns={
            **UCI,
            "steps": "by early stopping",
            "noise_factor": "chosen on held-out rows, as the steps",
            **_SCORES,
            "coverage": "of the central 90% interval",
        },
        records={"vip_deep": ""},
        short="--sets energy --splits 0 --num-steps 2",
        short_settings={
            "num_functions": 4,
            "more functions": 6,
            "draws": {"validation": 2, "test": 3},
            "sparse GP, rows": 30,
        },
        needs=("uci/energy.npz",),
    ),
    Benchmark(
        "papers.vip.vip_classification",
        "How well does an implicit process tell classes, beside other posteriors and GPs?",
        rows="a set, a method and a seed",
        columns={
            "set": "a name of --sets",
            **BY_METHOD,
            "steps": "by early stopping; the mean of an ensemble's; none of a GP by Laplace",
            "accuracy": "of test rows",
            "nll": "mean negative log-probability of the label",
            "ece": "expected calibration error, 15 bins",
            "auroc": "of each class against the rest, mean over classes",
            "auroc fashion_mnist": "by which entropy tells these from MNIST's digits",
            "auroc kmnist": "the same of these",
            "cpu_seconds": "of the fit, choices included",
        },
        records={"vip_classification": "", "vip_classification_choice": "--choose"},
        short="--num-steps 2 --num-images 20 --seeds 0 --sets digits mnist --methods "
        '"process, alpha=0" "process, alpha=0.5" mean-field MAP "ensemble of 5" "sparse GP"',
        short_settings={
            "hidden units": [4],
            "num_functions": 3,
            "num_particles": 2,
            "num_draws": 3,
            "num_inducing": 5,
            "prior_factors": [1.0],
        },
        needs=("mnist.npz", "fashion_mnist_test.npz", "kmnist_test.npz"),
        extra="sklearn torchmetrics",
    ),
    Benchmark(
        "papers.vip.vip_solar",
        "Can missing years of solar irradiance be filled in?",
        rows="a method and a seed",
        columns={
            "scale": "years are divided by",
            **_SCORES,
            "coverage": "of the central 90% interval",
        },
        records={"vip_solar": ""},
        short="--num-steps 2 --seeds 0",
        needs=("solar_tsi.npz",),
        figure=True,
    ),
    Benchmark(
        "papers.vip.vip_lotka_volterra",
        "Does a simulator, or a network, continue the oscillations of two populations?",
        rows="a kind of data, a method and a seed",
        columns={
            "data": "a name of --data",
            "start": "a name of --starts",
            "steps": "of the fit",
            "rmse_predators": "of one of them",
            "rmse_prey": "of the other",
            "medians": "of the simulator's rates",
            **_SCORES,
            "coverage": "of the central 90% interval",
        },
        records={
            "vip_lotka_volterra": "--data mean-field stochastic",
            "vip_lotka_volterra_starts": "--starts near middle far --num-steps 400",
        },
        short="--num-steps 2 --seeds 0 --data stochastic",
        figure=True,
    ),
    Benchmark(
        "papers.vip.vip_cep",
        "Can a process over strings predict the efficiency of molecules?",
        rows="a method and a seed",
        columns={
            "cell": "a name of --cell",
            "steps": "by early stopping",
            "rmse_percent": "of efficiency",
            **_SCORES,
            "coverage": "of the central 90% interval",
        },
        records={
            "vip_cep": "--num-steps 200 --seeds 0 1 2",
            "vip_cep_gated": "--cell gated --num-molecules 6000 --num-steps 600 --seeds 0 1 2 "
            '--methods "process, alpha=0.5" mean-field plain "ensemble of 5"',
            "vip_cep_whole": "--cell gated --num-molecules 29978 --num-steps 2000 --seeds 0 1 2 "
            '--methods "process, alpha=0.5" mean-field plain "ensemble of 5"',
        },
        short="--num-steps 2 --num-molecules 40 --hidden 4",
        short_settings={
            "num_functions": 3,
            "num_predictive": 5,
            "draws": 3,
            "batch_size": 10,
            "num_members": 2,
        },
        needs=("cep.csv.gz",),
    ),
)
