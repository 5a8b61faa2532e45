"""Does it resume, and does it see what is wrong?"""

from __future__ import annotations

from benchmarks.benchmark import Benchmark

BENCHMARKS = (
    Benchmark(
        "robustness.kill_and_resume",
        "Does a run that was killed end in the same bits?",
        rows="a run",
        columns={
            "objective": "a name of --objectives",
            "checkpoints": "default or every few steps",
            "validation": "with or without",
            "seed": "of the run",
            "killed in step": "of each kill",
            "resumed from": "step of the checkpoint after each kill",
            "files, all read": "checkpoint files left",
            "half-written temporary": "other files left",
            "same end": "whether all bits are",
        },
        records={"kill_and_resume": "--kills 50 --seeds 1 2"},
        short="--kills 1 --epochs 2 --objectives adversarial --checkpoints default --validation no",
        extra="lightning",
    ),
    Benchmark(
        "robustness.diagnostics_power",
        "Which check flags which guide that is wrong in a known way?",
        rows="a guide and a seed, with a data set of its own",
        columns={
            "guide": "what is wrong with it",
            "seed": "of data and draws",
            "excess": "of the entropy, in nats",
            "k-hat": "of importance weights",
            "stein": "squared discrepancy",
            "stein p": "its p-value",
            "SBC p": "of uniform ranks",
            "accuracy": "of a classifier between draws and exact ones",
            "C2ST p": "its p-value",
            "flags": "whether each check flags it",
        },
        records={"diagnostics_power": ""},
        short="--seeds 0 --draws 100 --simulations 10 --guides correct",
    ),
)
