"""How accurate are log-determinants, ratios of densities and reduced precision?"""

from __future__ import annotations

from benchmarks.benchmark import Benchmark

BENCHMARKS = (
    Benchmark(
        "numerics.logdet_accuracy",
        "How near is the log-determinant, by matrix-vector products spent?",
        rows="a generator and a method",
        columns={
            "generator": "untrained or trained",
            "seed": "of generator, training, noise and probes",
            "method": "Lanczos by steps, LOBPCG by iterations, or exact",
        },
        records={"logdet_accuracy": "--seeds 0 1 2"},
        short='--generators "boston 50 -> 751" --train-steps 2 --draws 1 --probes 20',
        needs=("uci/boston.npz",),
        figure=True,
    ),
    Benchmark(
        "numerics.ratio_accuracy",
        "How near are learned ratios of densities, between known Gaussians?",
        rows="a number of dimensions, an estimator, a seed and a dtype",
        columns={
            "d": "dimensions",
            "estimator": "a name of --estimators",
            "seed": "of the draws",
            "dtype": "float32 or float64",
            "kl": "mean of the divergence over repeats",
            "kl_sd": "its deviation",
            "by_mean": "derivative by the mean",
            "by_mean_sd": "its deviation",
            "by_scale": "derivative by the scale",
            "by_scale_sd": "its deviation",
            "cpu_ms": "of an evaluation",
        },
        records={"ratio_accuracy": ""},
        short="--dims 2 --repeats 2 --warm-up 1",
    ),
    Benchmark(
        "numerics.bfloat16",
        "Does training in bfloat16 change anything?",
        rows="a precision and a seed",
        columns={
            "precision": "of Lightning",
            "seed": "of the fit",
            "accuracy 0": "as they come",
            "nll 0": "mean negative log-likelihood",
            "ece 0": "expected calibration error",
            "nll 60": "rotated by 60 degrees",
            "entropy": "at the last step",
            "not finite": "steps with a value or gradient that is not",
            "cpu_seconds": "of the fit",
        },
        records={
            "bfloat16": "--epochs 2 --num-train 5120 --num-test 1000 --seeds 0 1 2 3 4 5 6 7 8 9"
        },
        short="--num-train 16 --num-test 4 --epochs 1 --seeds 0",
        needs=("mnist.npz",),
        extra="lightning",
    ),
)
