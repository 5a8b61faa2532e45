"""Kernel implicit variational inference: its experiments, with controls."""

from __future__ import annotations

from benchmarks.benchmark import Benchmark

BENCHMARKS = (
    Benchmark(
        "papers.kivi.kivi_uci",
        "What is the published ratio's KL term worth in regression?",
        rows="a set, a split, a seed and a method",
        columns={
            "set": "of UCI",
            "split": "canonical",
            "seed": "of the fit",
            "method": "a name of --methods",
            "rmse": "in the target's units",
            "log_likelihood": "of a test row, mean",
            "coverage": "of the central 90% interval",
            "claimed_kl": "what the objective takes it for",
            "forced_kl": "what the marginal moments force",
            "cpu_seconds": "of the fit",
        },
        records={"kivi_uci": ""},
        short="--sets boston --splits 0 --num-steps 2",
        needs=("uci/boston.npz",),
    ),
    Benchmark(
        "papers.kivi.kivi_mnist",
        "And for the 478 410 weights of a network for MNIST?",
        rows="a method and a seed",
        columns={
            "method": "a name of --methods",
            "seed": "of the fit",
            "test_error": "share",
            "nll": "mean negative log-likelihood",
            "claimed_kl": "what the objective takes it for",
            "cpu_seconds": "of the fit",
        },
        records={"kivi_mnist": "--num-train 6000"},
        short="--width 16 --hidden 20 --epochs 2 --num-train 8 --num-test 4",
        needs=("mnist.npz",),
        extra="torchvision",
    ),
)
