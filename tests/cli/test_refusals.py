"""Every refused command line: its exit status, the option or file that is wrong, and what its message says."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ckptplan
from tests.support import long_plan, run, small_plan

#: line | exit status | the option or the file that is wrong, '' where the message begins otherwise | pieces
REFUSED = """
# Numbers and sizes
optimize --T 0 | 2 | --T | '0' | from 1 to 1,000,000,000,000
optimize --T -5 | 2 | --T | '-5'
optimize --T 2000000000000 | 2 | --T | '2000000000000' | from 1 to 1,000,000,000,000
optimize --T 4e3 | 2 | --T | '4e3' | whole number
optimize --T '4 KiB' | 2 | --T | '4 KiB' | whole number
optimize --T '' | 2 | --T | '' | whole number
optimize --T THREE | 2 | --T | whole number
optimize --T NINES | 2 | --T | '9999
optimize --batch 0 | 2 | --batch | '0'
optimize --local-bytes 0 | 2 | --local-bytes | '0'
optimize --local-bytes nan | 2 | --local-bytes | 'nan'
optimize --local-bytes '624 KB' | 2 | --local-bytes | '624 KB' | 'KB'
optimize --local-bytes '595.9 KiB' | 2 | --local-bytes | 610201
optimize --remote-bytes -1 | 2 | --remote-bytes | -1
optimize --max-overhead inf | 2 | --max-overhead | 'inf'
optimize --max-overhead 10 | 2 | --max-overhead | '10' | 1000% | '10%'
largest T --deadline '0 s' | 2 | --deadline | '0 s' | more than 0 s
largest T --deadline soon | 2 | --deadline | 'soon'
largest batch --max-overhead 10 | 2 | --max-overhead | '10' | 1000% | '10%'
optimize --headroom=100% | 2 | --headroom | '100%' | from 0 to below 1, as 0.1 or '10%'
optimize --headroom=-1 | 2 | --headroom | '-1' | from 0 to below 1
optimize --headroom=10 | 2 | --headroom | '10' | from 0 to below 1
optimize --headroom=much | 2 | --headroom | 'much' | from 0 to below 1
pareto --at '300 KB' | 2 | --at | '300 KB' | 'KB'
pareto --cache all --resolution 2 | 2 | --resolution | '2' | 200%
sensitivity --uncertainty 10 | 2 | --uncertainty | '10' | 1000% | '10%'
sensitivity --uncertainty foo | 2 | --uncertainty | 'foo' | share
sensitivity --uncertainty 0 | 2 | --uncertainty | '0' | above 0 and up to 1
sensitivity --uncertainty 200% | 2 | --uncertainty | '200%' | above 0 and up to 1
compare --profile ipu-mk2,cpu-nvme --deadline soon | 2 | --deadline | 'soon'
compare --profile ipu-mk2,cpu-nvme --deadline '0 h' | 2 | --deadline | '0 h'
compare --profile ipu-mk2,cpu-nvme --price-per-hour cheap | 2 | --price-per-hour | 'cheap'
compare --profile ipu-mk2,cpu-nvme --price-per-hour nan | 2 | --price-per-hour | nan
compare --profile ipu-mk2,cpu-nvme --price-per-hour h100=2 | 2 | --price-per-hour | h100
compare --profile ipu-mk2,cpu-nvme --batches 0 | 2 | --batches | '0'
paper --figure 7 | 2 | --figure | '7' | a whole number from 2 to 5
paper --figure two | 2 | --figure | 'two' | a whole number from 2 to 5
simulate --online --slots 3 --T 9:1 | 2 | --T | '9:1' | FIRST:LAST
simulate --online --slots 3 --T 1:NINES | 2 | --T | FIRST:LAST
simulate --online --slots 3 --T 1:99999999 | 2 | T | slots
profiles new --like nvidia-h200 --power-watts much | 2 | --power-watts | 'much'
profiles new --like nvidia-h200 --measure . --state-bytes '0 B' | 2 | --state-bytes | '0 B'
workloads new --kind gru --layers 0 | 2 | --layers | '0'
# Names and choices, with a hint where one is close
optimise | 2 | | 'optimise' | 'optimize'
workloads check | 2 | | 'check' | list, show, new
optimize --lokal-bytes 1 | 2 | | --lokal-bytes | --local-bytes
optimize --profil ipu-mk2 | 2 | | --profil | --profile
optimize --t 5 | 2 | | --t | --T
optimize --objective speed | 2 | --objective | 'speed' | 'balanced'
optimize --effort some | 2 | --effort | 'some' | 'quick'
optimize --format xml | 2 | --format | 'xml' | 'csv'
paper --format xml | 2 | --format | 'xml' | 'table'
paper --picture-format gif --pictures . | 2 | --picture-format | 'gif' | 'png'
optimize --profile ipu-mk | 2 | --profile | 'ipu-mk' | Did you mean 'ipu-mk1' or 'ipu-mk2'?
optimize --profile h100 | 2 | --profile | 'h100' | Did you mean 'nvidia-h100-sxm'?
optimize --profile H100 | 2 | --profile | Did you mean 'nvidia-h100-sxm'?
optimize --profile h10 | 2 | --profile | Did you mean 'nvidia-h100-sxm'?
optimize --profile a100 | 2 | --profile | Did you mean 'nvidia-a100-80gb'?
optimize --profile wormhole | 2 | --profile | Did you mean 'tenstorrent-wormhole-n300'?
optimize --profile zzz | 2 | --profile | 'zzz'. (accepted:
compare --profile ipu-mk2,ipu-mk3 | 2 | --profile | 'ipu-mk3'
compare --profile , | 2 | --profile | 'all'
profiles new --like h200 | 2 | --like | 'h200' | 'nvidia-h200'
optimize --workload paper_snn | 2 | --workload | 'paper_snn' | 'paper-snn'
optimize --workload paper | 2 | --workload | 'paper' | 'paper-snn'
optimize --strategies dubble | 2 | --strategies | 'dubble' | 'double'
optimize --strategies '' | 2 | --strategies
pareto --strategies paretto | 2 | --strategies | 'paretto'
sensitivity --strategies doubel | 2 | --strategies | 'doubel' | 'double'
optimize --model paper --strategies nested | 2 | --model | equation
largest tea | 2 | quantity | 'tea' | 'T', 'batch', 'neurons'
sweep --over bandwith=1GB/s | 2 | --over bandwith | 'bandwidth'
# Commands for one job
optimize --profile ipu-mk2,ipu-mk1 | 2 | --profile | takes one
optimize --profile ipu-mk2 --profile ipu-mk1 | 2 | --profile | takes one
optimize --workload gru,paper-snn | 2 | --workload | takes one
optimize --workload gru --workload paper-snn | 2 | --workload | takes one
pareto --profile ipu-mk2,ipu-mk1 | 2 | --profile | takes one
largest T --profile ipu-mk2,ipu-mk1 | 2 | --profile | takes one
largest T --workload gru --workload paper-snn | 2 | --workload | takes one
sensitivity --profile ipu-mk2,ipu-mk1 | 2 | --profile | takes one
# Options that exclude or need each other
pareto --at 0 --local-bytes 1MB | 2 | --local-bytes | --at
largest T --T 10 | 2 | --T | largest T
compare --profile ipu-mk2,cpu-nvme --regret | 2 | --regret | one --profile
paper --figure 2 --markdown page | 2 | --markdown | --figure
simulate | 2 | PLAN | a plan file, or --online
simulate --slots 3 | 2 | --slots | --online
simulate --T 40 | 2 | --T | --online
simulate --online | 2 | --slots | missing
simulate --online --slots 3 --gantt x.png | 2 | --gantt | --online
simulate - --schedule - | 2 | --schedule | standard input
workloads new | 2 | --kind
workloads new --kind gru --nir net.nir | 2 | --kind | --nir
workloads new --cell gru --nir net.nir | 2 | --cell | --nir
workloads new --kind gru --cell gru | 2 | --kind | --cell
workloads new --kind convlstm | 2 | --height
workloads new --kind gru --profile cpu-nvme | 2 | --profile | --forward-seconds
workloads new --kind gru --profile ./mine.toml | 2 | --profile | mine | PEAKS | --forward-seconds
workloads new --kind gru --backward-seconds '1 ms' | 2 | --forward-seconds | missing
profiles new | 2 | --local-bytes | missing
profiles new --local-bytes '24 GB' | 2 | --write-bytes-per-second | missing
# Files that cannot be read
optimize --profile none.toml | 2 | none.toml | No such file
profiles check wrong.toml | 2 | wrong.toml | local_bytes | 'KB'
simulate '' | 2 | plan | empty name
simulate schedule.csv | 2 | schedule.csv | JSON
simulate schedule.jsonl | 2 | schedule.jsonl | schedule | plan
simulate plan.json --schedule gone.csv | 2 | gone.csv | No such file
profiles new --like nvidia-h200 --measure plan.json | 2 | --measure
report none.json | 2 | none.json | cannot be read
# Files that cannot be written, or would be lost
optimize -o '' | 2 | --output | empty name
schedule plan.json -o '' | 2 | --output | empty name
simulate plan.json --trace '' | 2 | --trace | empty name
simulate plan.json --gantt '' | 2 | --gantt | empty name
paper --pictures '' | 2 | --pictures | empty name
compare --html '' | 2 | --html | empty name
optimize --html no/p.html | 2 | --html | 'no/p.html' | does not exist
report plan.json -o no/p.html | 2 | --output | 'no/p.html' | does not exist
pareto --html . | 2 | --html | '.' | folder
optimize --html NINES | 2 | --html | cannot be written: File name too long
optimize --html - | 2 | --html | standard output carries the result
report plan.json -o plan.json | 2 | --output | would be lost
pareto --html same -o same | 2 | --output | --html
optimize -o no/plan.json | 2 | --output | 'no/plan.json' | does not exist
sweep --over T=1,2 -o no/s.csv | 2 | --output | 'no/s.csv' | does not exist
simulate plan.json --gantt no/p.png | 2 | --gantt | 'no/p.png' | does not exist
simulate plan.json --trace no/t.json | 2 | --trace | 'no/t.json' | does not exist
simulate plan.json --trace t.json -o no/x | 2 | --output | 'no/x' | does not exist
pareto --plot no/front.png | 2 | --plot | 'no/front.png' | does not exist
sensitivity --plot no/t.png | 2 | --plot | 'no/t.png' | does not exist
sensitivity --plot folder.png | 2 | --plot | 'folder.png' | folder
sweep --over T=1,2 -o . --format csv | 2 | --output | '.' | folder
paper --pictures plan.json | 2 | --pictures | a folder
schema plan -o plan.json/page | 2 | --output | 'plan.json/page' cannot be written: Not a directory
pareto --plot - | 2 | --plot | a file
simulate plan.json --trace - | 2 | --trace | a file
simulate plan.json --trace - -o x | 2 | --trace | a file
pareto --plot front.gif | 2 | --plot | 'front.gif' | .svg
compare --profile ipu-mk2,cpu-nvme --plot front.bmp | 2 | --plot | 'front.bmp' | .svg
sensitivity --plot t.gif | 2 | --plot | 't.gif' | .svg
simulate plan.json --gantt p.gif | 2 | --gantt | 'p.gif' | .svg
pareto -o front.png | 2 | --output | 'front.png' | --plot
sweep --over T=1,2 -o s.txt | 2 | --output | 's.txt' | .csv
optimize --profile ./mine.toml -o ./mine.toml | 2 | --output | would be lost
compare --profile ./mine.toml -o mine.toml | 2 | --output | would be lost
simulate plan.json --trace plan.json | 2 | --trace | would be lost
simulate plan.json --schedule s.csv -o s.csv | 2 | --output | would be lost
sweep --merge part-1.csv -o part-1.csv | 2 | --output | would be lost
simulate plan.json --trace a.json -o a.json | 2 | --output | --trace
pareto --html same.svg --plot same.svg | 2 | --plot | --html
paper --markdown page -o page | 2 | --output | --markdown
simulate long.json --gantt p.png | 2 | --gantt | 200,000 actions | a shorter sequence
# Schedules that break a law: the line, the action and the law
simulate plan.json --schedule word.jsonl | 2 | word.jsonl: line 3 | end | start, stop
simulate plan.json --schedule action.jsonl | 2 | action.jsonl: line 3 | action | 'advanse' | 'advance'
simulate plan.json --schedule save.jsonl | 2 | save.jsonl: line 4 | save(state=10, tier=remote) | working state
simulate plan.json --schedule steps.jsonl --trace t.json | 2 | steps.jsonl: line 1 | steps | 65 | 64
simulate plan.json --schedule base.csv | 2 | base.csv: line 2 | record(start=0, stop=64) | 283,584 | 230,000
# Grids, parts and clusters of a sweep
sweep | 2 | --over | missing
sweep --over T=5:1 | 2 | --over T | '5:1'
sweep --over forward-seconds=0 | 2 | --over forward-seconds | 0.0
sweep --over local-bytes=1MiB,2MiB --local-bytes '3 MiB' | 2 | --local-bytes | either the axis
sweep --over T=1,2 --T 5 | 2 | --T | --over
sweep --over T=1,2 --jobs 0 | 2 | --jobs | '0'
sweep --over T=1,2 --format parquet | 2 | --format | -o FILE
sweep --over T=1,2 --format parquet -o /dev/null | 2 | --format | -o FILE
sweep --over T=1,2 --over batch=3,6 --over latency=0,1us -o s.csv --plot p.png | 2 | --plot | 3
sweep --over T=1,2 --shard 1/2 | 2 | --shard | -o FILE
sweep --over T=1,2 --shard 1/2 -o a.csv --plot p.png | 2 | --plot | --shard
sweep --over T=1,2 --shard 1/3 -o a.csv | 2 | --shard | 3 parts of 2 rows
sweep --over T=1,2 --shard 2 -o a.csv | 2 | --shard | '2' | NUMBER/COUNT
sweep --over T=1,2 --engine slurm://a:1 | 2 | --engine | 'slurm://a:1' | dask://HOST
sweep --over T=1,2 --engine dask://a:1 --jobs 2 | 2 | --jobs | --engine
sweep --merge part-1.csv | 2 | --merge | -o FILE.csv or -o FILE.jsonl
sweep --merge part-1.csv -o all.parquet | 2 | --merge | -o FILE.csv or -o FILE.jsonl
sweep --merge part-1.csv part-2.csv -o all.jsonl | 2 | part-1.csv | csv | jsonl
sweep --merge part-1.jsonl part-2.jsonl -o all.csv | 2 | part-1.jsonl | jsonl | csv
sweep --merge part-1.csv part-2.jsonl -o all.csv | 2 | part-2.jsonl | jsonl | csv
sweep --merge part-1.csv --over T=1,2 -o all.csv | 2 | --over | --merge
sweep part-1.csv --over T=1,2 -o all.csv | 2 | PARTS | --merge
sweep --merge -o all.csv | 2 | parts
sweep --merge part-1.csv -o all.csv | 2 | parts | part 2 of 2
sweep --merge third.csv -o all.csv | 2 | parts | parts 1, 3 of 3
sweep --merge part-1.csv part-2.csv again.csv -o all.csv | 2 | again.csv | 2/2
sweep --merge part-1.csv foreign.csv -o all.csv | 2 | foreign.csv | 2/2
sweep --merge part-1.csv third.csv -o all.csv | 2 | third.csv | 2/3
sweep --merge part-1.csv whole.csv -o all.csv | 2 | whole.csv | no part of a sweep
sweep --merge part-1.csv short.csv -o all.csv | 2 | short.csv | 1 of the 2 rows | 2/2
sweep --merge part-1.csv cut.csv -o all.csv | 2 | cut.csv | row 2 | 2/2
sweep --merge part-1.csv mixed.csv -o all.csv | 2 | mixed.csv | row 2 | 2/2
sweep --merge part-1.csv zero.csv -o all.csv | 2 | zero.csv | no part of a sweep
sweep --merge part-1.csv beyond.csv -o all.csv | 2 | beyond.csv | no part of a sweep
sweep --merge part-1.csv empty.csv -o all.csv | 2 | empty.csv | no part of a sweep
sweep --merge part-1.csv gone.csv -o all.csv | 2 | gone.csv | No such file
# Files that hold something else than the sweep's first rows
sweep --over T=64,65,66,67 --over batch=60 -o whole.csv | 2 | whole.csv | --restart
sweep --over T=64,65,66,67 --max-overhead 50% -o whole.csv | 2 | whole.csv | --restart
sweep --over T=64,65,66,67 --strategies paper -o whole.jsonl | 2 | whole.jsonl | --restart
sweep --over T=64,65,66,67 --objective memory -o whole.parquet | 2 | whole.parquet | --restart
sweep --over T=64,65,66,67 --shard 1/2 -o part-2.csv | 2 | part-2.csv | --restart
sweep --over T=64,65,66,67 -o gap.jsonl | 2 | gap.jsonl | 3 rows | --restart
sweep --over T=64,65,66,67 -o table.csv | 2 | table.csv | --restart
sweep --over T=64,65,66,67 -o head.jsonl | 2 | head.jsonl | --restart
sweep --over T=64,65,66,67 -o letter.csv | 2 | letter.csv | --restart
sweep --over T=64,65,66,67 -o words.csv | 2 | words.csv | --restart
sweep --over T=64,65,66,67 -o bracket.jsonl | 2 | bracket.jsonl | --restart
sweep --over T=64,65,66,67 -o bytes.parquet | 2 | bytes.parquet | --restart
# Nothing fits: what is needed, what there is, and options that help
optimize --T 64 --strategies double --local-bytes 200kB | 3 | | 217,056 bytes | 200,000 bytes | --local-bytes
optimize --strategies remote --remote-bytes 1kB --T 64 --local-bytes 230kB | 3 | | 5,652,480 bytes | 1,000 bytes
optimize --T 64 --strategies disk-revolve --max-overhead 0 | 3 | | +4.9 % | 0 % | --max-overhead
optimize --local-bytes 200kB | 3 | | 217,056 bytes | 200,000 bytes | --local-bytes
optimize --T 128 --max-overhead 1% --local-bytes 240kB | 3 | | --max-overhead 5.4% | --local-bytes 328128
optimize --remote-bytes 0 --strategies double | 3 | | --remote-bytes 1413120
optimize --strategies base | 3 | | --strategies growing
optimize --model paper --max-overhead 4% --local-bytes '1 GB' --strategies standard | 3 | | +5.0 %
optimize --T 256 --strategies bptt-msm --local-bytes 225400 | 3 | | 242,496 bytes | --local-bytes 242496
optimize --T 20000 --strategies bptt-msm --local-bytes 4MB | 3 | | 2,573 | 20,000 steps | --strategies standard
optimize --workload ./full.toml --profile ./tenth.toml | 3 | | 90,000 bytes | 100 kB | 10 % | --headroom 0
sensitivity --local-bytes '200 KiB' | 3 | | 204,800 bytes | --local-bytes
pareto --T 64 --at '100 KiB' | 3 | | 102,400 bytes | --local-bytes
pareto --T 64 --strategies disk-revolve --max-overhead 0 --plot p.png | 3 | | --max-overhead
optimize --local-bytes 1 | 3 | | 1 B (1 byte)
"""
#: Refused when PyTorch has been imported or a cell has run, which takes seconds.
REFUSED_SLOWLY = """
calibrate | 2 | | --cell
calibrate --cell gruu | 2 | --cell | 'gru'
calibrate --cell nowhere.at_all:make | 2 | --cell | ModuleNotFoundError
calibrate --cell not_linear:make | 2 | --cell | not linear in the steps of a chunk
calibrate --cell gru --batch 0 | 2 | --batch | '0'
calibrate --cell gru --tolerance 0 | 2 | --tolerance | '0'
calibrate --cell gru --bytes-only --tolerance 0 | 2 | --tolerance | '0'
calibrate --cell gru --threads none | 2 | --threads | 'none'
calibrate --cell gru --repeats 2 | 2 | --repeats | '2'
calibrate --cell gru --max-seconds 0 | 2 | --max-seconds | '0'
calibrate --cell gru --max-seconds=-1 | 2 | --max-seconds
calibrate --cell gru --max-seconds 0.01 | 2 | --max-seconds | a smaller batch or fewer neurons
calibrate --cell gru --quick --repeats 5 | 2 | --repeats | --quick
calibrate --cell gru --quick --bytes-only | 2 | --quick | --bytes-only
calibrate --cell gru --bytes-only --profile-out p.toml | 2 | --profile-out | --bytes-only
calibrate --cell gru --bytes-only --remote-dir far | 2 | --remote-dir | --bytes-only
calibrate --cell gru -o same.toml --profile-out same.toml | 2 | --profile-out | --output
calibrate --cell gru -o nowhere/w.toml | 2 | --output | 'nowhere/w.toml' | does not exist
calibrate --cell gru -o - | 2 | --output
calibrate --cell gru -o 'my gru.toml' | 2 | --output | is not a name
validate plan.json --cell 'gruu(neurons=2)' | 2 | --cell | 'gru'
validate no-cell.json | 2 | workload.cell | names no cell | --cell
validate nowhere.json | 2 | nowhere.json | No such file
validate plan.json --tolerance -1 | 2 | --tolerance | '-1'
validate plan.json --overhead-tolerance 0 | 2 | --overhead-tolerance | '0'
validate plan.json --max-seconds soon | 2 | --max-seconds | 'soon'
validate plan.json --max-seconds 0 | 2 | --max-seconds | '0'
validate paper.json --max-seconds '100 ms' | 2 | --max-seconds | 3 runs of 4,096 steps
validate plan.json --trace nowhere/t.json | 2 | --trace | does not exist
validate plan.json -o plan.json | 2 | --output | would be lost
workloads new --cell gru --backward-seconds '80 us' | 2 | --forward-seconds | missing
"""
STANDS_FOR = {
    "NINES": "9" * 4400,
    "THREE": "\N{ARABIC-INDIC DIGIT THREE}",
    "PEAKS": "float32_flops_per_second, local_bytes_per_second, launch_seconds",
}
NOT_LINEAR = """
import torch

class Cell(torch.nn.Module):
    def __init__(self, neurons):
        super().__init__()
        self.layer = torch.nn.Linear(neurons, neurons)

    def forward(self, state, x):
        values, count = state
        for _ in range(int(count)):
            values = values.sin()
        values = self.layer(values)
        return (values, count + 1), values

def make(batch, neurons):
    return Cell(neurons), (torch.zeros(batch, neurons), torch.zeros((), dtype=torch.long))
"""
TIMES = "forward_seconds = 1\nbackward_seconds = 1\nrecompute_seconds = 1\n"
RATES = "write_bytes_per_second = 1\nread_bytes_per_second = 1\n"
FILES = {
    "mine.toml": 'name = "mine"\nlocal_bytes = "1 GB"\nremote_bytes = 0\n',
    "tenth.toml": f'name = "tenth"\nlocal_bytes = "100 kB"\nheadroom = "10%"\nremote_bytes = 0\n{RATES}',
    "wrong.toml": f'name = "wrong"\nlocal_bytes = "5 KB"\n{RATES}',
    "full.toml": f'name = "full"\nsteps = 9\nresident_bytes = 90000\nstate_bytes = 9\ntape_bytes = 30\n{TIMES}',
    "no-cell.toml": f'name = "w"\nsteps = 8\nunits = 1\nbatch = 2\nstate_bytes = 8\ntape_bytes = 8\n{TIMES}',
    "not_linear.py": NOT_LINEAR,
    "s.csv": "",
    "base.csv": "action,start,stop,state,tier,states,source,target\nrecord,0,64,,,,,\nbackward,0,64,,,,,\n",
    "table.csv": "my,own,table\n1,2,3\n",
    # As short as the beginning of a sweep, but no sweep's: a part of its beginning is what a crash left.
    "letter.csv": "t",
    "words.csv": "sweep,steps,word",
    "bracket.jsonl": "[",
    "head.jsonl": '{"sweep": "' + "0" * 100_000,
}
WITHOUT_JSON = ("report", "schedule", "schema", "sweep")
GRID = ("sweep", "--over", "T=64,65,66,67", "--jobs", "1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with plans, schedules, sweeps and parts of them, right ones and wrong ones."""
    folder = tmp_path_factory.mktemp("refusals")
    (folder / "folder.png").mkdir()
    (folder / "bytes.parquet").write_bytes(b"\xff\x00" * 50_000)
    plan = small_plan()
    ckptplan.save_plan(plan, folder / "plan.json")
    ckptplan.save_plan(long_plan(40_000), folder / "long.json")
    for name in ("schedule.csv", "schedule.jsonl"):
        ckptplan.save_schedule(plan, folder / name)
    text = (folder / "schedule.jsonl").read_text()
    wrong = {
        "word.jsonl": ("stop", "end"), "action.jsonl": ('"advance"', '"advanse"'),
        "save.jsonl": ('"stop":10', '"stop":11'), "steps.jsonl": ('"steps":64', '"steps":65'),
    }  # fmt: skip
    for name, content in {**FILES, **{name: text.replace(*change) for name, change in wrong.items()}}.items():
        (folder / name).write_text(content)
    for line in (
        "optimize --workload ./no-cell.toml --profile nvidia-h200 -o no-cell.json",
        "optimize --T 4096 --strategies paper -o paper.json",
    ):
        assert run(*shlex.split(line), cwd=folder).returncode == 0
    for name in ("whole.csv", "whole.jsonl", "whole.parquet"):
        assert run(*GRID, "-o", name, cwd=folder).returncode == 0
    for name, shard in (("part-1", "1/2"), ("part-2", "2/2"), ("third", "2/3")):
        for kind in ("csv", "jsonl"):
            assert run(*GRID, "--shard", shard, "-o", f"{name}.{kind}", cwd=folder).returncode == 0
    foreign = ("--objective", "memory", "--shard", "2/2", "-o", "foreign.csv")
    assert run(*GRID, *foreign, cwd=folder).returncode == 0
    first, lines = ((folder / f"part-{number}.csv").read_text().splitlines(keepends=True) for number in (1, 2))
    rows = (folder / "whole.jsonl").read_text().splitlines(keepends=True)
    parts = {
        "again": "".join(lines), "short": "".join(lines[:-1]), "cut": "".join(lines)[:-5],
        "mixed": lines[0] + lines[1] + first[2], "zero": f"{lines[0]}0123456789ab:1/0:5,1\n",
        "beyond": f"{lines[0]}0123456789ab:3/2:5,1\n", "empty": f"{lines[0]}0123456789ab:1/2:0,1\n",
    }  # fmt: skip
    for name, content in parts.items():
        (folder / f"{name}.csv").write_text(content)
    (folder / "gap.jsonl").write_text("".join(rows[:1] + rows[2:]))
    return folder


def refused(table: str) -> Iterator[Any]:
    """Yield the lines of a table as parameters."""
    for row in table.strip().splitlines():
        if not row.startswith("#"):
            line, status, place, *pieces = (cell.strip() for cell in row.split(" |"))
            yield pytest.param(line, int(status), place, pieces, id=line)


def contents(folder: Path) -> dict[Path, bytes]:
    return {
        file: file.read_bytes() if file.is_file() else b""
        for file in folder.rglob("*")
        if "__pycache__" not in file.parts
    }


@pytest.mark.parametrize(
    ("line", "status", "place", "pieces"),
    [
        *refused(REFUSED),
        *(pytest.param(*row.values, id=row.id, marks=pytest.mark.slow) for row in refused(REFUSED_SLOWLY)),
    ],
)
def test_a_refused_line_says_what_is_wrong_and_changes_no_file(
    line: str, status: int, place: str, pieces: list[str], folder: Path
) -> None:
    """With ``--format json`` standard output has the same as a document, else it is empty."""
    words = [STANDS_FOR.get(word, word.replace("NINES", STANDS_FOR["NINES"])) for word in shlex.split(line)]
    takes_json = not {"--format", *WITHOUT_JSON} & {*words} and words[1:2] != ["new"]
    before = contents(folder)
    done = run(*words, *(("--format", "json") if takes_json else ()), cwd=folder)
    assert done.returncode == status, done.stderr
    # Warnings may come before it.
    message = re.split("^(?=ckptplan: )", done.stderr, flags=re.MULTILINE)[-1]
    assert message.startswith(f"ckptplan: {place}: " if place else "ckptplan: ")
    assert [piece for piece in pieces if STANDS_FOR.get(piece, piece) not in message] == [], message
    assert len(message) < 1000
    assert "Traceback" not in done.stderr
    assert contents(folder) == before
    if takes_json:
        document = json.loads(done.stdout)
        assert (document["kind"], document["exit_code"]) == ("ckptplan.error", status)
        assert message.startswith(f"ckptplan: {document['message']}")
        places = [document[name] for name in ("source", "field") if document.get(name)]
        assert bool(places) == (bool(place) and status == 2)
        assert not places or message.startswith(f"ckptplan: {': '.join(places)}: ")
    else:
        assert done.stdout == ""


def test_a_format_may_be_joined_to_its_option_by_an_equals_sign() -> None:
    assert json.loads(run("optimize", "--T", "0", "--format=json").stdout)["field"] == "--T"


@pytest.mark.parametrize(
    "line",
    ["optimize --T 128 --local-bytes '200 kB'", "optimize --T 256 --strategies bptt-msm --local-bytes 225400"],
)
def test_each_suggestion_makes_the_refused_line_work(line: str) -> None:
    """A suggestion names one option, is for the strategies asked for, and is data for programs, too."""
    done = run(*shlex.split(line), "--format", "json")
    suggested = json.loads(done.stdout)["suggestions"]
    options = re.findall(r"^ *(--\S+ \S+)", done.stderr, re.MULTILINE)
    assert 2 <= len(options) == len(suggested) <= 4
    assert "--remote-bytes" not in done.stderr
    for option, suggestion in zip(options, suggested, strict=True):
        planned = run(*shlex.split(f"{line} {option} --format json"))
        assert json.loads(planned.stdout)["predicted"]["overhead"] <= suggestion["overhead"] * (1 + 1e-9)
