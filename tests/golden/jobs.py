"""Ten jobs that every command is asked about: what fits, what does not, one step, two tiers, many steps."""

from __future__ import annotations

#: Options by job. A command takes those that it has.
JOBS: dict[str, dict[str, str]] = {
    "feasible": {"--T": "40", "--local-bytes": "232 kB"},
    "infeasible": {"--T": "40", "--local-bytes": "200 kB"},
    "one-point": {"--T": "1"},
    "two-tiers": {"--T": "32", "--local-bytes": "221 kB", "--remote-bytes": "4 MB"},
    "overlap": {
        "--T": "24",
        "--workload": "gru",
        "--profile": "nvidia-jetson-orin-nano",
        "--local-bytes": "16.5 MB",
        "--remote-bytes": "unbounded",
    },
    "headroom": {"--T": "30", "--headroom": "64.2%", "--batch": "100"},
    "long": {
        "--T": "1000000",
        "--workload": "gru",
        "--profile": "nvidia-a100-80gb",
        "--strategies": "paper,growing",
        "--resolution": "10%",
    },
    "memory": {"--T": "32", "--objective": "memory", "--max-overhead": "50%", "--strategies": "closed"},
    "paper-model": {"--T": "64", "--objective": "balanced", "--model": "paper", "--strategies": "paper"},
    "machines": {
        "--T": "40",
        "--profile": "ipu-mk1,ipu-mk2,nvidia-h200",
        "--workload": "snn-shd",
        "--batches": "1000",
        "--price-per-hour": "ipu-mk2=2,nvidia-h200=3.5",
        "--deadline": "1 min",
        "--strategies": "regular",
    },
}
#: What a command needs besides a job's options.
NEEDS = {
    "largest": ("T",),
    "sweep": ("--over", "T=8,16,1000", "--jobs", "1"),
    "sensitivity": ("--uncertainty", "10%"),
}
#: What it cannot be combined with.
WITHOUT = {"largest": ("--T",), "sweep": ("--T",)}
#: What it is asked in place of a job's option: all closed forms, searched for each format, take as long as the
#: other commands on the job together.
INSTEAD = {("memory", "largest"): {"--strategies": "paper"}}
#: The formats of commands that have others than table, JSON and CSV; '' is none named.
FORMATS = {"schedule": ("jsonl", "csv"), "sweep": ("", "jsonl", "csv")}
#: Commands about one plan, which ``optimize`` writes first.
OF_A_PLAN = ("simulate", "schedule", "report")
#: A page of a million steps takes minutes; its schedule has a line for each action.
TOO_LONG = {("long", "schedule"), ("long", "report")}
#: Commands that no job changes, each as it is called.
ALONE = {
    "paper": ("paper",),
    "profiles-list": ("profiles", "list"),
    "profiles-show": ("profiles", "show", "ipu-mk2"),
    "profiles-check": ("profiles", "check", "ipu-mk2", "nvidia-h200"),
    "profiles-new": ("profiles", "new", "--local-bytes", "1 GiB", "--write-bytes-per-second",
                     "20 GB/s", "--read-bytes-per-second", "20 GB/s", "--remote-bytes", "64 GB"),
    "workloads-list": ("workloads", "list"),
    "workloads-show": ("workloads", "show", "gru"),
    "workloads-new": ("workloads", "new", "--kind", "lstm", "--layers", "3", "--neurons", "64", "--batch", "8",
                      "--T", "128", "-o", "my-lstm.toml"),
    "schema": ("schema", "plan"),
}  # fmt: skip
#: Commands that measure: what they print has the same words and fields each time, and other numbers.
CELL = ("--cell", "gru", "--batch", "4", "--neurons", "16", "--inputs", "8", "--T", "100", "--threads", "1")
MEASURED = {
    "calibrate": ("calibrate", *CELL, "--quick"),
    "validate": ("validate", "plan.json", "--repeats", "1", "--regret"),
}
#: What was calibrated, planned.
MY_JOB = (
    "--workload", "./my-workload.toml", "--profile", "./my-machine.toml", "--local-bytes", "60 kB",
    "--strategies", "standard,growing",
)  # fmt: skip
