"""Linearised implicit variational inference: its experiments, with controls."""

from __future__ import annotations

from benchmarks.benchmark import Benchmark
from benchmarks.shared.columns import BY_METHOD, CPU

BENCHMARKS = (
    Benchmark(
        "papers.livi.toy_regression",
        "Is the posterior wider where there are no data?",
        rows="a method and a seed",
        columns={
            "method": "a name of --methods",
            "seed": "of data and fit",
            "rmse, data": "of the mean, among the data",
            "rmse, gap": "of the mean, between them",
            "sd, data": "of the network's output, among the data",
            "sd, gap": "between them",
            "ratio": "of the two deviations",
            "distance, data": "of the output from the reference's, in its deviations",
            "distance, gap": "between them",
            "r-hat, data": "worst, of the reference",
            "r-hat, gap": "between them",
            "critic right": "share, of an adversarial method",
            **CPU,
        },
        records={
            "toy_regression": "--seeds 0 1 2 --num-steps 2000 --methods HMC mean-field "
            '"no KL" linearised autoregressive lanczos kernel "kernel, published" adversarial '
            '"adversarial, 500 draws" "adversarial, paper"'
        },
        short="--seeds 0 --num-steps 2 --methods HMC mean-field linearised autoregressive lanczos "
        "kernel adversarial",
        short_settings={
            "map_steps": 5,
            "num_draws": 5,
            "num_particles": 2,
            "num_chains": 2,
            "chain_steps": 40,
            "max_leapfrog": 2,
            "r_hat_draws": 8,
        },
        figure=True,
    ),
    Benchmark(
        "papers.livi.mnist",
        "Accuracy and calibration of LeNet on MNIST, as it comes and rotated?",
        rows="a method and a seed",
        columns={
            **BY_METHOD,
            "accuracy 0": "as they come",
            "nll 0": "mean negative log-likelihood",
            "ece 0": "expected calibration error, 15 bins",
            "accuracy 60": "rotated by 60 degrees",
            "nll 60": "rotated",
            "ece 60": "rotated",
            "seconds": "by the clock",
            **CPU,
        },
        records={"mnist": "--epochs 10 --seeds 0 1 2"},
        short="--epochs 2 --num-train 8 --num-test 4",
        short_settings={"num_draws": 2},
        needs=("mnist.npz",),
        extra="torchvision",
    ),
    Benchmark(
        "papers.livi.entropy_estimates",
        "Do the estimates of the entropy follow the true one along training?",
        rows="a guide, a seed and a step",
        columns={
            "guide": "by its noises",
            "seed": "of the fit",
            "step": "of training",
            "upper": "importance-sampled estimate of the entropy, from above",
            "lower": "and from below",
            "linearised": "Eq. 15",
            "lanczos_upper": "one probe",
            "lanczos_lower": "one probe",
            "singular_value_bound": "Eq. 18, converged",
            "standard_error": "of the linearised estimate",
            "rank": "effective, of the Jacobian",
        },
        records={"entropy_estimates": "--seeds 0 1 2 --steps 1500 --checks 6"},
        short='--seeds 0 --steps 2 --checks 1 --guides "10 noises"',
        figure=True,
    ),
)
