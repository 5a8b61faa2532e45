"""Linearised implicit variational inference: its experiments, with controls."""

from __future__ import annotations

from benchmarks.benchmark import Benchmark
from benchmarks.shared.columns import BY_METHOD, CPU, PREDICTIONS, UCI

PREDICTED = {
    "accuracy": "share of images that are told rightly",
    "nll": "mean negative log-likelihood",
    "ece": "expected calibration error, 15 bins",
    "brier": "mean squared error over classes, summed",
}
TOLD_APART = {
    "auroc": "area under the ROC curve against the test images",
    "fpr95": "share that passes where 95% of the test images do",
}
_ON_LARGE_SETS = (
    '--methods map "ensemble of 5" laplace "laplace, Kronecker" "laplace, last" "MC dropout" SWAG '
    'mean-field "no entropy" linearised "singular value"'
)
_SPOILT = [f"{kind} {level}" for kind in ("blur", "noise", "brightness") for level in (1, 3, 5)]

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
            "ratio": "of the two deviations, where the first is not 0",
            "distance, data": "of the output from the reference's, in its deviations",
            "distance, gap": "between them",
            "r-hat, data": "worst, of the reference",
            "r-hat, gap": "between them",
            "critic right": "share, of an adversarial method",
            **CPU,
        },
        records={
            "toy_regression": '--seeds 0 1 2 --num-steps 1500 --methods HMC MAP "ensemble of 5" '
            'laplace "MC dropout, 0.02" "MC dropout, 0.1" "SWAG, 0.0001" "SWAG, 0.001" mean-field '
            '"full-rank Gaussian" "no KL" linearised autoregressive "autoregressive, path" lanczos '
            '"kernel, published" "adversarial, paper"'
        },
        short="--seeds 0 --num-steps 2",
        short_settings={
            "map_steps": 5,
            "num_draws": 5,
            "num_particles": 2,
            "num_chains": 2,
            "chain_steps": 40,
            "num_modes": 2,
            "max_leapfrog": 2,
            "r_hat_draws": 8,
        },
        figure=True,
    ),
    Benchmark(
        "papers.livi.layer_correlation",
        "Are correlations between the weights of different layers recovered?",
        rows="a method and a seed",
        columns={
            "method": "a name of --methods",
            "seed": "of data and fit",
            "across": "error of the correlations between layers, root mean square",
            "within": "and within a layer",
            "share": "slope of the correlations between layers on the reference's",
            "size": "root mean square of the reference's",
            "mean": "error of the means, in the reference's deviations",
            "sd": "deviations over the reference's, geometric mean",
            "r_hat": "worst weight, of the reference",
            "rate": "of two, that with the higher bound",
            "bound": "at the end",
            "correlations": "of all weights: w, b, v, c",
            **CPU,
        },
        records={"layer_correlation": "--seeds 0 1 2 --chain-steps 160000"},
        short="--seeds 0 --num-steps 2",
        short_settings={"num_rows": 20, "num_chains": 4, "chain_steps": 2000, "num_draws": 20},
        figure=True,
    ),
    Benchmark(
        "papers.livi.livi_uci",
        "Do both bounds do alike on UCI, and as well as what costs as much?",
        rows="a set, a split, a seed and a method",
        columns={**UCI, "settings": "of the fit", **PREDICTIONS, **CPU},
        records={
            "livi_uci": "--sets boston concrete energy",
            "livi_uci_large": f"--sets kin8nm naval --double {_ON_LARGE_SETS}",
            "livi_uci_long": "--sets boston concrete energy --splits 0 1 2 3 4 --times 10 "
            '--methods mean-field "full Gaussian" "no entropy" linearised',
            "livi_uci_choice": "--splits 0 --choose --methods mean-field linearised "
            '"singular value"',
        },
        short="--sets boston --splits 0",
        short_settings={
            "num_members": 2,
            "num_more_members": 3,
            "mode_steps": 3,
            "num_steps": 2,
            "num_particles": 2,
            "noise_dim": 3,
            "hidden_dim": 3,
            "num_draws": 4,
        },
        needs=("uci/boston.npz",),
    ),
    Benchmark(
        "papers.livi.mnist",
        "Accuracy, calibration and doubt of LeNet on MNIST, rotated digits and other images?",
        rows="a method and a seed",
        columns={
            **BY_METHOD,
            **{
                f"{score} {angle}": f"{what}, rotated by {angle} degrees"
                for angle in range(0, 181, 15)
                for score, what in PREDICTED.items()
            },
            **{
                f"{score} {doubt} {kind}": f"{what} by {doubt}"
                for kind in ("KMNIST", "FashionMNIST", "notMNIST")
                for doubt in ("entropy", "information")
                for score, what in TOLD_APART.items()
            },
            **{
                f"entropy {percent}% {kind}": f"of predictions, quantile at {percent}%, nats"
                for kind in ("KMNIST", "FashionMNIST", "notMNIST")
                for percent in range(0, 101, 5)
            },
            **CPU,
            "scores_cpu_seconds": "of all scores",
        },
        records={
            "mnist": "--epochs 5 --num-train 20000 --num-shifted 1000 --seeds 0 1 2",
            "mnist_50000": "--epochs 10 --num-train 50000 --seeds 0 1 2",
            "mnist_entropies": "--epochs 5 --num-train 20000 --num-shifted 1000 --seeds 0 1 2",
        },
        short="--epochs 2 --num-train 8 --num-test 4 --num-shifted 3",
        short_settings={"num_draws": 2, "num_modes": 2},
        needs=("mnist.npz", "kmnist_test.npz", "fashion_mnist_test.npz", "notmnist_test.npz"),
        extra="torchvision torchmetrics",
        figure=True,
    ),
    Benchmark(
        "papers.livi.cifar",
        "The same on CIFAR-10, spoilt photographs and CIFAR-100?",
        rows="a method and a seed",
        columns={
            **BY_METHOD,
            "rate": "of its steps; of dropout: the share of features left out",
            **{
                f"{score} {kind}": f"{what}, {kind}"
                for kind in ("0", *_SPOILT)
                for score, what in PREDICTED.items()
            },
            **{
                f"{score} {doubt} CIFAR-100": f"{what} by {doubt}"
                for doubt in ("entropy", "information")
                for score, what in TOLD_APART.items()
            },
            **CPU,
        },
        records={
            "cifar": "--seeds 0 1 2",
            "cifar_choice": "--choose --seeds 7 --num-shifted 4 --methods dropout",
            "cifar_wideresnet": "--network wideresnet-10-1 --bfloat16 --num-train 25000 --epochs 6 "
            "--seeds 0 1 2",
            "cifar_wideresnet_choice": "--network wideresnet-10-1 --bfloat16 --choose --seeds 7 "
            "--batch-size 64 --epochs 5 --num-shifted 4 --methods map dropout swag mean-field "
            "control",
        },
        short="--seeds 0 --epochs 1 --num-train 8 --num-test 4 --num-shifted 3",
        short_settings={"num_draws": 2, "num_modes": 2},
        needs=("cifar10_jpeg.npz", "cifar100_test_jpeg.npz"),
        extra="torchvision torchmetrics",
        figure=True,
    ),
    Benchmark(
        "papers.livi.entropy_estimates",
        "Do the estimates of the entropy follow the true one along training?",
        rows="a guide, a seed and a step",
        columns={
            "guide": "by its noises; VAE: as the decoder of an autoencoder of Hamiltonian draws",
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
            "encoder": "importance-sampled by the encoder, from above, Eq. F.2",
            "bound": "evidence bound of a draw that the autoencoder is trained on",
            "draws": "that it is trained on",
            "r_hat": "of the network's output by these, worst",
        },
        records={
            "entropy_estimates": '--seeds 0 1 2 --steps 1500 --checks 6 --guides "10 noises" '
            '"19 noises"',
            "entropy_estimates_vae": "--seeds 0 1 2 --steps 6000 --checks 6 --guides "
            '"VAE, 10 noises" "VAE, 19 noises"',
        },
        short="--seeds 0 --steps 2 --checks 1",
        short_settings={
            "num_samples": 4,
            "num_inner": 20,
            "num_starts": 2,
            "chains": 4,
            "chain_steps": 400,
            "chain_warmup": 100,
            "max_leapfrog": 2,
            "encoder_samples": 5,
        },
        figure=True,
    ),
)
