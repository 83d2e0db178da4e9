"""What a shell offers at Tab: names of strategies, profiles, workloads and axes; files where nothing is named.

Each function takes what has been typed so far. A shell whose program offers nothing completes names of files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

#: What is offered, each with a few words for shells that show them.
Offers = list[tuple[str, str]]


def complete_profile(incomplete: str) -> Offers:
    """Return the built-in profiles that begin so."""
    from ckptplan.storage.library import list_names

    return _begin_with(incomplete, dict.fromkeys(list_names("hardware_profiles"), ""))


def complete_workload(incomplete: str) -> Offers:
    """Return the built-in workloads that begin so."""
    from ckptplan.storage.library import list_names

    return _begin_with(incomplete, dict.fromkeys(list_names("workloads"), ""))


def complete_strategies(incomplete: str) -> Offers:
    """Return lists of strategies that begin so: the last name is completed, and none is named twice."""
    from ckptplan.cli.help import describe_strategies

    return _complete_list(incomplete, describe_strategies())


def complete_profiles(incomplete: str) -> Offers:
    """Return lists of profiles that begin so."""
    return _complete_list(incomplete, dict(complete_profile("")))


def complete_workloads(incomplete: str) -> Offers:
    """Return lists of workloads that begin so."""
    return _complete_list(incomplete, dict(complete_workload("")))


def complete_axis(incomplete: str) -> Offers:
    """Return the inputs that a sweep may vary, as ``bandwidth=``."""
    from ckptplan.studies.axes import all_axes

    return _begin_with(incomplete, {f"{name}=": "" for name in all_axes()})


def complete_quantity(incomplete: str) -> Offers:
    """Return what may be made as large as possible."""
    return _begin_with(incomplete, {"T": "time steps", "batch": "samples", "neurons": "size of the network"})


def complete_cell(incomplete: str) -> Offers:
    """Return the built-in cells that begin so."""
    return _begin_with(incomplete, dict.fromkeys(("gru", "lif", "lstm", "rnn"), ""))


def _begin_with(incomplete: str, known: Mapping[str, str]) -> Offers:
    return [(name, text) for name, text in known.items() if name.startswith(incomplete)]


def _complete_list(incomplete: str, known: Mapping[str, str]) -> Offers:
    """Complete the last name of a list with commas; a shell replaces all that was typed."""
    head, comma, last = incomplete.rpartition(",")
    left_out = _names(head)
    offers = _begin_with(last, {name: text for name, text in known.items() if name not in left_out})
    return [(f"{head}{comma}{name}", text) for name, text in offers]


def _names(text: str) -> Iterable[str]:
    return {name.strip() for name in text.split(",")}


#: A function that completes a value.
Completer = Callable[[str], Offers]
