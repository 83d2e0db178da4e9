"""Values for options, files and axes: what a stranger may type, and whether it is surely wrong."""

from __future__ import annotations

import random

#: Text that is no number, no name and no option, wherever it stands.
JUNK = (
    "", " ", "-", "--", "---", "x", "nan", "NaN", "inf", "-inf", "Infinity", "1e999", "0x10", "1_000", "٣",
    "²", "½",
    "1,5", "1e", "e5", "+", "..", "null", "None", "true", "[]", "{}", "%s%s%n", "{0.__class__}", "$(id)",
    "`id`",
    "'; --", "=1+1", "@x", "\u202e1\u202c", "\ufeff1", "\x1b[31m1\x1b[0m", "[bold]x[/bold]", "[/]", "<b>1</b>",
    "a\nb", "a\tb", "a\rb", "é", "日本語", "🧨" * 5, "x" * 300, "9" * 30, "9" * 5000, "1." + "0" * 400,
    "1" + " " * 3000 + "B", "\x7f", "\x01",
)  # fmt: skip
_WHOLE = ("1", "2", "3", "7", "64", "100", "4096", "1000000")
_SMALL = ("1", "2", "5", "16")
_SIZES = ("1 B", "100 kB", "230 kB", "300 KiB", "624KiB", "1 MB", "1e6", "1 GiB", "64 GB", "0.5 MiB", "638976")
_SHARES = ("0", "0.1", "10%", "50 %", "1", "1000%", "1e-9")
#: metavar -> values that are accepted, and values that are surely refused.
_POOLS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "INTEGER": (_WHOLE, ("0", "-1", "1.5", "1e3", " 1", "1 ", "10**3", "1000000000001", "12 steps")),
    "SIZE": (_SIZES, ("1 KB", "-1 B", "1.5 B", "1e30 B", "1 s", "KiB", "1 B B", "1..5 kB", "1 mb")),
    "SHARE": (_SHARES, ("-1", "-10%", "10%%", "5 s", "1e999%")),
    "NAMES": (
        (
            "paper",
            "regular",
            "standard",
            "double,remote",
            "hierarchical",
            "base",
            "nested",
            "growing",
            "closed",
        ),
        ("dubble", "standard,,remote", ",", "optimal;remote", "Base", "standard,standart"),
    ),
    "NAME|PATH": (
        ("ipu-mk1", "ipu-mk2", "nvidia-h200", "cpu-nvme"),
        ("ipu-mk3", "./none.toml", "/", "/dev/null"),
    ),
}
#: Files that the program may be told to write, and whether it can.
WRITABLE = ("out.json", "out.csv", "out", "é.json", "sub/out.json", "-o.json", "out file.json", "link.json")
UNWRITABLE = ("missing/out.json", ".", "sub", "loop", "a" * 300, "sub/out.json/x", "")


def hostile_text(chance: random.Random) -> str:
    """Return text that is surely no number."""
    return chance.choice(JUNK)


def value_for(metavar: str, chance: random.Random, *, small: bool) -> tuple[str, bool]:
    """Return a value for an option, and whether the program must refuse it."""
    good, bad = _POOLS.get(metavar, ((), ()))
    if metavar == "INTEGER" and small:
        good = _SMALL
    draw = chance.random()
    if good and draw < 0.6:
        return chance.choice(good), False
    if bad and draw < 0.85:
        return chance.choice(bad), True
    text = hostile_text(chance)
    # Shares and sizes may be written with spaces, and numbers with many digits; only some junk is surely wrong.
    return text, metavar == "INTEGER" and not text.isdecimal()


def number_near(value: float, chance: random.Random) -> float:
    """Return a number near another, or far away."""
    whole = isinstance(value, int)
    change = chance.choice(["one", "scale", "sign", "zero", "huge", "tiny"])
    if change == "one":
        return value + chance.choice([-1, 1])
    if change == "scale":
        scaled = value * chance.choice([2, 3, 10, 1000, 0.5, 0.1])
        return round(scaled) if whole else scaled
    if change == "sign":
        return -value
    if change == "zero":
        return 0 if whole else 0.0
    if change == "huge":
        return chance.choice([2**31, 2**53 + 1, 2**62, 2**63, 2**64, 10**30]) if whole else 1e308
    return 1 if whole else 5e-324


#: Axes of sweeps and values for them: accepted ones have a few points.
AXES = (
    "T=1:64:x2", "T=1,2,3", "T=64", "batch=1,2,120", "neurons=1472,2944", "local-bytes=100kB:1MB:n4",
    "local-bytes=1,2,624KiB", "remote-bytes=0,1 GB,unbounded", "bandwidth=1GB/s:80GB/s:n3",
    "latency=0:1us:+500ns",
    "synchronisation=0,1us", "recompute-ratio=0.1,1,30%", "profile-units=1,1472", "forward-seconds=1us,2us",
    "state-bytes=1,1000", "tape-bytes=1,1000,5000", "chunk-seconds=0,1us", "transfer-seconds=1us",
    "write-bytes-per-second=1,1e9", "workload-units=1,2",
)  # fmt: skip
WRONG_AXES = (
    "", "=", "T", "T=", "=1", "T==1", "T=1:", "T=1:2", "T=1:2:3", "T=1:2:x1", "T=1:2:x0", "T=2:1:x2",
    "T=1:2:+0",
    "T=1:2:-1", "T=1:2:n0", "T=1:2:n1e9", "T=1:1000000000000:+1", "T=0", "T=-1", "T=1.5", "T=1,,2", "T=nan",
    "T=1:inf:x2", "T=1:2:xnan", "T=1:2:n\u00b2", "t=1", "Tt=1", "bogus=1", "bandwidth=0", "bandwidth=-1GB/s",
    "latency=-1us", "local-bytes=-1", "local-bytes=1 KB", "batch=0", "T=1;2", "T=9" + "9" * 4000,
    "T=1" + " " * 5000 + "x", "T=" + "1," * 3000 + "x", "T=1:2:x1.0000000000000000001", "recompute-ratio=0",
)  # fmt: skip
#: Variables of the surroundings that other programs set, or a user mistypes.
VARIABLES = {
    "COLUMNS": ("0", "1", "-5", "20", "80", "400", "²", "x", "", "999999999999", "1e3", " 80 "),
    "LINES": ("0", "x", "-1", "²"),
    "NO_COLOR": ("", "1", "x"),
    "FORCE_COLOR": ("", "1", "x"),
    "TERM": ("dumb", "unknown", "", "xterm-256color", "²"),
    "SOURCE_DATE_EPOCH": (
        "0",
        "x",
        "1e9",
        "100000000000000000000",
        "-1",
        "",
        "1700000000",
        "253402300800",
        "²",
    ),
    "MPLCONFIGDIR": ("/nonexistent", "/dev/null", ""),
    "LANG": ("C", "de_DE.UTF-8", "x", ""),
    "LC_ALL": ("C", "POSIX", "tr_TR.UTF-8", "x"),
    "PYTHONIOENCODING": ("ascii", "latin-1", "utf-8:strict", "utf-16", "cp037", "ascii:replace"),
    "PYTHONUTF8": ("0", "1"),
    "PYTHONOPTIMIZE": ("1", "2"),
    "PYTHONUNBUFFERED": ("1",),
    "HOME": ("/nonexistent", "", "/dev/null"),
    "TMPDIR": ("/nonexistent", ""),
    "CKPTPLAN_CACHE": ("/dev/null", "off", "\u202e"),
    "_CKPTPLAN_COMPLETE": ("bash_source", "complete_bash", "zsh_complete", "x", "", "source_fish"),
    "_TYPER_COMPLETE_ARGS": ("ckptplan ", "x", ""),
    "_TYPER_STANDARD_TRACEBACK": ("1",),
    "COMP_WORDS": ("ckptplan", ""),
    "COMP_CWORD": ("x", "1"),
    "PYDANTIC_DISABLE_PLUGINS": ("x", ""),
    "TTY_COMPATIBLE": ("1", "x"),
    "TTY_INTERACTIVE": ("1", "x"),
    "TYPER_USE_RICH": ("0", "x", "²"),
    "TERMINAL_WIDTH": ("x", "-1", "²"),
    "GITHUB_ACTIONS": ("1",),
}
