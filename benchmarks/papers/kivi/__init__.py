"""Kernel implicit variational inference: its experiments, with controls."""

from __future__ import annotations

from benchmarks.benchmark import Benchmark
from benchmarks.shared.columns import BY_METHOD, CPU, PREDICTIONS, UCI

BENCHMARKS = (
    Benchmark(
        "papers.kivi.kivi_uci",
        "What is the published ratio's KL term worth in regression?",
        rows="a set, a split, a seed and a method",
        columns={
            **UCI,
            **PREDICTIONS,
            "claimed_kl": "what the objective takes it for, if it has a term",
            "forced_kl": "what the marginal moments force, of a guide",
            **CPU,
        },
        records={
            "kivi_uci": "--sets boston concrete energy wine yacht --splits 0 1 3 4",
            "kivi_uci_large": "--sets kin8nm power protein --splits 0 1 2",
        },
        short="--sets boston --splits 0 --num-steps 2",
        needs=("uci/boston.npz",),
    ),
    Benchmark(
        "papers.kivi.kivi_mnist",
        "And for the 478 410 weights of a network for MNIST?",
        rows="a method and a seed",
        columns={
            **BY_METHOD,
            "test_error": "share",
            "nll": "mean negative log-likelihood",
            "claimed_kl": "what the objective takes it for",
            **CPU,
        },
        records={"kivi_mnist": "--num-train 6000"},
        short="--width 16 --hidden 20 --epochs 2 --num-train 8 --num-test 4",
        needs=("mnist.npz",),
        extra="torchvision",
    ),
)
