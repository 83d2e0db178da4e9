"""The results of benchmarks.gpu as tables: sections of docs/gpu.md and docs/accuracy.md, and a picture."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.accuracy_tables import END, table
from benchmarks.gpu.tables import TABLES, Line
from benchmarks.record import RESULTS

DOCS = Path(__file__).parent.parent.parent / "docs"
BEGIN = "<!-- benchmarks.gpu -->\n"
#: The stages of each page, in the order of its section.
PAGES = {
    "gpu.md": ("tests", "profile", "headline", "remote", "compiled", "ddp", "jax"),
    "accuracy.md": ("accuracy",),
}
PICTURE = "pictures/gpu-headline.png"
COMMAND = "python -m benchmarks.gpu"


def merge(documents: list[Line]) -> Line:
    """Return one document with the stages of several runs on the same device, the later ones last."""
    first = documents[0]
    if any(one["results"]["small"] for one in documents) or any(one["device"] is None for one in documents):
        raise SystemExit("results of small runs, or of no GPU, are no measurements: they are not reported")
    if len({(one["device"], one["torch"]) for one in documents}) > 1:
        raise SystemExit("the files are of different devices, or of different versions of PyTorch")
    stages = {name: stage for one in documents for name, stage in one["results"]["stages"].items()}
    return {**first, "results": {"small": False, "stages": stages}}


def describe(document: Line) -> str:
    """Return the device, the versions and the command."""
    return (
        f"`{COMMAND}` on {document['device']} ({document['device_bytes'] / 2**30:.0f} GiB), PyTorch "
        f"{document['torch']}, CUDA {document['cuda']}, cuDNN {document['cudnn']}, Python "
        f"{document['python']}, {document['date']}."
    )


def make_section(document: Line, names: tuple[str, ...]) -> str:
    """Return the tables of some stages, with what became of each; none is left out."""
    stages = document["results"]["stages"]
    parts = [describe(document)]
    rows = []
    for name in names:
        one = stages.get(name, {"status": "not measured", "failures": [], "seconds": 0})
        failures = "; ".join(one["failures"]) or ""
        rows.append([name, one["status"], f"{one.get('seconds', 0):.0f} s", failures.replace("|", "/")])
    parts.append(table(["stage", "became", "took", "failures"], rows))
    for name in names:
        results = stages.get(name, {}).get("results")
        if results:
            parts += TABLES[name](results)
    return "\n\n".join(parts) + "\n"


def print_tables(document: Line) -> None:
    """Print the tables of all stages."""
    stages = document["results"]["stages"]
    rows = [[name, one["status"], f"{one.get('seconds', 0):.0f} s"] for name, one in stages.items()]
    parts = [table(["stage", "became", "took"], rows)]
    for name, one in stages.items():
        if one["results"]:
            parts += TABLES[name](one["results"])
    sys.stdout.write("\n" + "\n\n".join(parts) + "\n")


def write_pages(document: Line) -> None:
    """Write the results, the tables into the pages, and the picture."""
    (RESULTS / "gpu.json").write_text(json.dumps(document, indent=2) + "\n")
    for page, names in PAGES.items():
        path = DOCS / page
        before, rest = path.read_text().split(BEGIN)
        section = make_section(document, names)
        if page == "gpu.md" and draw(document, DOCS / PICTURE):
            section += f"\n![Time and memory of every way to train a sequence ten times longer]({PICTURE})\n"
        path.write_text(before + BEGIN + section + END + rest.split(END, 1)[1])
    sys.stdout.write(f"written into {', '.join(f'docs/{page}' for page in PAGES)}\n")


def draw(document: Line, path: Path) -> bool:
    """Draw time over base against peak memory of the headline; return whether there was anything to draw."""
    results = document["results"]["stages"].get("headline", {}).get("results")
    rows = [
        (one["network"], line)
        for one in (results or {}).get("sequences", ())
        for line in one["variants"]
        if line.get("over_base") is not None
    ]
    if not rows:
        return False
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    kinds = list(dict.fromkeys(kind for kind, _ in rows))
    figure, panels = plt.subplots(1, len(kinds), figsize=(6 * len(kinds), 4.5), squeeze=False)
    for panel, kind in zip(panels[0], kinds, strict=True):
        for one, line in rows:
            if one == kind:
                x, y = line["peak_bytes"] / 2**30, 1 + line["over_base"]
                colour = "tab:blue" if line["variant"].startswith("ckptplan") else "tab:grey"
                panel.plot(x, y, "o", color=colour)
                panel.annotate(line["variant"], (x, y), fontsize=7, xytext=(4, 4), textcoords="offset points")
        panel.set(title=kind, xlabel="peak, GiB", ylabel="time a step over base's")
        panel.axhline(1.35, color="tab:red", linewidth=0.8, linestyle="--")
        panel.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)
    return True
