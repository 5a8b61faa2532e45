"""What does it cost, in time and memory?"""

from __future__ import annotations

from benchmarks.benchmark import Benchmark

_SMALL = "--network perceptron --guide mmnn --batch-size 8"

BENCHMARKS = (
    Benchmark(
        "cost.step_cost",
        "What is a training step, in MAP steps of the same network?",
        rows="network, guide, objective, number of draws and how they are made; MAP without guide",
        columns={
            "network": "a name of --networks",
            "batch_size": "rows of a step",
            "guide": "A and B are the published matrix-multiplication generators for LeNet",
            "objective": "and its number of iterations",
            "draws": "of the weights, in a step",
            "how": "loop or vmap",
            "ms": "median milliseconds",
            "time": "in MAP steps",
        },
        records={
            "step_cost": "",
            "step_cost_wideresnet": "--networks wideresnet-16-4 --rounds 3",
        },
        short="--networks perceptron --rounds 1 --no-memory --batch-size 8",
    ),
    Benchmark(
        "cost.scaling",
        "How does the cost grow with the number of latents, up to 36.5 million?",
        rows="a network",
        columns={
            "network": "a name of --networks",
            "latents": "weights and biases",
            "parameters": "of the guide",
            "noise": "its dimensions",
            "build": "seconds to make the guide",
            "draw": "seconds of a draw",
            "evaluate": "seconds of the objective",
            "step": "seconds of a training step",
            "map_step": "seconds of a MAP step",
            "relative": "step in MAP steps",
            "peak_gb": "peak memory of the whole process",
            "half_log_det": "two-sided estimate",
        },
        records={"scaling": ""},
        short="--networks perceptron --num-steps 1 --batch-size 4",
        figure=True,
    ),
    Benchmark(
        "cost.overhead",
        "What does an implicit guide cost beside AutoNormal, and its entropy beside long routes?",
        rows="a median time, or a ratio of two",
        columns={"what": "median ms or ratio", "of": "the job", "value": "the number"},
        records={"overhead": ""},
        short="--rounds 1 --warm-up 0",
    ),
    Benchmark(
        "cost.file_changes",
        "How many files does a reader meet on the way of a draw and of a data row?",
        rows="a job",
        columns={
            "job": "what is run",
            "files": "of the package that it calls",
            "calls": "of its functions",
            "changes": "calls into another file than the one before",
        },
        records={"file_changes": ""},
    ),
    Benchmark(
        "cost.process_cost",
        "How do time and memory of an implicit process grow with the number of inputs?",
        rows="a number of functions and of inputs",
        columns={
            "S": "functions",
            "N": "inputs",
            "forward": "CPU seconds of log_prob",
            "gradient": "the same with the gradient of the prior's parameter",
            "growth": "bytes that the peak memory of the process grows by",
        },
        records={"process_cost": ""},
        short="--sizes 20000 10000 --num-functions 4",
    ),
    Benchmark(
        "cost.compile",
        "Is torch.compile worth while?",
        rows="a part of a training step",
        columns={
            "part": "generator or likelihood",
            "parameters": "of it",
            "compiling": "seconds of the first run",
            "eager": "seconds",
            "compiled": "seconds",
            "ratio": "compiled to eager",
        },
        records={"compile": "--rounds 10"},
        short=f"{_SMALL} --rounds 2 --backend eager",
    ),
    Benchmark(
        "cost.ddp",
        "What do two processes gain, and how much do they send?",
        rows="a number of processes and a seed",
        columns={
            "processes": "each with a batch of its own",
            "seconds per step": "by the clock",
            "data per second": "of all processes",
            "parameters": "of the guide",
            "MB sent per step": "by each process, in a ring",
        },
        records={"ddp": "--seeds 0"},
        short=f"{_SMALL} --steps 3 --seeds 0",
        extra="lightning",
    ),
)
