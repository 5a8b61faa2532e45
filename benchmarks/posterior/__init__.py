"""How near is the posterior to the true one, and what is it worth?"""

from __future__ import annotations

from benchmarks.benchmark import Benchmark

_CPU = {"cpu_seconds": "of the fit"}

BENCHMARKS = (
    Benchmark(
        "posterior.posteriordb",
        "How far are means and deviations from long Hamiltonian Monte Carlo?",
        rows="a model, a method and a seed",
        columns={
            "model": "of posteriordb",
            "method": "a name of --methods",
            "seed": "of the fit",
            "mean_error": "worst parameter, in deviations of the reference",
            "sd_error": "worst parameter, relative",
            "worst": "which these are",
            "errors": "of all parameters, signed",
            "targets": "goals for both",
            "seconds": "by the clock",
            **_CPU,
        },
        records={
            "posteriordb": "--methods start implicit",
            "posteriordb_pyro": "--methods mvn laplace",
            "posteriordb_reference": "--reference",
        },
        short="--models kidscore_momiq --seeds 0 --num-steps 3",
        needs=("posteriordb/kidiq-kidscore_momiq.npz",),
    ),
    Benchmark(
        "posterior.uci_regression",
        "Do implicit guides predict better than mean-field and MAP on UCI sets?",
        rows="a set, a split, a seed and a method",
        columns={
            "set": "of UCI",
            "split": "canonical",
            "seed": "of the fit",
            "method": "a name of --methods",
            "settings": "steps, rate, start, output noise",
            "rmse": "in the target's units",
            "log_likelihood": "of a test row, mean",
            "coverage": "of the central 90% interval",
            "seconds": "by the clock",
            **_CPU,
        },
        records={"uci_regression": "", "uci_start": "--choose --splits 0 --methods full-rank"},
        short="--sets energy --splits 0 --num-steps 0.001 --methods map recipe",
        needs=("uci/energy.npz",),
    ),
    Benchmark(
        "posterior.non_gaussian",
        "Does the default guide follow densities that no Gaussian fits?",
        rows="a target and a seed",
        columns={
            "target": "Banana or TwoModes",
            "seed": "of the fit",
            "implicit": "Wasserstein-1 distance to exact draws",
            "AutoMultivariateNormal": "its distance",
            "floor": "distance of two exact samples",
            "seconds": "of the implicit fit",
        },
        records={"non_gaussian": "--seeds 0 1"},
        short="--num-steps 3 --seeds 0",
        short_settings={"num_draws": 40, "num_particles": 4},
        figure=True,
    ),
    Benchmark(
        "posterior.objectives",
        "What does each objective make of the same small posteriors?",
        rows="a target, a method and a seed",
        columns={
            "target": "mixture, logistic or banana",
            "method": "an objective, a control or NUTS",
            "seed": "of the fit",
            "w1": "Wasserstein-1 distance to exact draws",
            "gaussian_kl": "of the Gaussians of the moments",
            "true_kl": "of guide and posterior, by nearest neighbours",
            "note": "clipped draws, the critic's accuracy, or what went wrong",
            **_CPU,
        },
        records={
            "objectives_logistic": "--targets logistic --num-steps 700",
            "objectives_mixture": "--targets mixture",
            "objectives_banana": "--targets banana --num-steps 1000",
            "objectives_instability": "--instability --seeds 0 --num-steps 2000",
        },
        short="--num-steps 2 --seeds 0 --nuts 0",
        short_settings={"num_particles": 4, "num_draws": 60, "num_exact": 200, "num_assigned": 40},
        figure=True,
    ),
)
