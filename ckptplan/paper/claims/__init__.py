"""All claims, in the order of the paper's sections."""

from __future__ import annotations

from collections.abc import Callable

from ckptplan.paper.claims import baselines, double, hierarchical, lengths, methods, networks, times
from ckptplan.paper.claims.claim import Claim
from ckptplan.paper.setting import PaperSetting

CLAIMS: tuple[Callable[[PaperSetting], Claim], ...] = (
    # Sections I and III
    methods.usual_overhead,
    methods.recompute_share,
    methods.recompute_small_share,
    methods.communications,
    # Section IV, with statements of the abstract and section VI on the same subjects
    lengths.base_length,
    lengths.standard_length,
    times.standard_time,
    lengths.remote_length,
    times.remote_time,
    lengths.double_length,
    times.double_time,
    lengths.longer_sequences,
    networks.larger_networks,
    networks.five_times_larger_networks,
    networks.memory_across_sizes,
    # Section V, and section VI on the growth of memory
    baselines.standard_is_quickest,
    baselines.remote_is_smallest,
    baselines.standard_chunk,
    baselines.standard_chunk_and_time,
    baselines.remote_chunk,
    hierarchical.hierarchical_in_the_same_memory,
    hierarchical.hierarchical_at_the_same_chunk,
    hierarchical.hierarchical_memory,
    hierarchical.bandwidth_binds,
    double.double_gains_from_local_checkpoints,
    double.double_near_standard,
    double.remote_chunk_of_double,
    double.chunk_of_double,
    double.larger_remote_chunks,
    double.memory_growth,
)


def make_claims(setting: PaperSetting) -> tuple[Claim, ...]:
    """Return every claim with the model's number, computed for ``setting``."""
    return tuple(make(setting) for make in CLAIMS)
