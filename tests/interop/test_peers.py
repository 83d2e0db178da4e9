"""The classical problem as checkpoint_schedules plans it: the same least costs.

Its schedules are executed action by action and their costs added up. With uf = ub, since version 1.0.4
confuses the two where they differ.
"""

import checkpoint_schedules as peer
import pytest

from ckptplan.model.budget import Budget
from ckptplan.recursion.classical import SingleTape
from ckptplan.recursion.problem import Prices
from ckptplan.recursion.tree import UnitSizes
from tests.support import ask, plain_costs

DISK = peer.StorageType.DISK
PROBLEMS = [
    (steps, slots, *transfer)
    for steps in (5, 12, 30)
    for slots in (1, 2, 3, 5)
    for transfer in ((1, 1), (3, 2), (10, 10))
]


def cost(schedule: peer.CheckpointSchedule, *, steps: int, write: int, read: int) -> int:
    """Forward steps and transfers, less the first run of each step."""
    total = 0
    for action in schedule:
        if isinstance(action, peer.Forward):
            total += len(action) + (write if action.write_ics and action.storage is DISK else 0)
        elif isinstance(action, peer.Copy | peer.Move) and action.from_storage is DISK:
            total += read
        elif isinstance(action, peer.EndReverse):
            break
    return total - steps


@pytest.mark.parametrize("recompute", [0.1, 1.0, 2.5])
@pytest.mark.parametrize(("steps", "slots", "write", "read"), PROBLEMS)
def test_h_revolve_costs_what_the_optimum_costs(
    steps: int, slots: int, write: int, read: int, recompute: float
) -> None:
    schedule = peer.HRevolve(steps, slots, steps, uf=1, ub=1, wd=write, rd=read)
    single = SingleTape(
        steps=steps,
        units=20 + slots,
        sizes=UnitSizes(1, 20),
        prices=Prices(recompute=recompute, write=write * recompute, read=read * recompute),
    )
    expected = cost(schedule, steps=steps, write=write, read=read) * recompute
    assert single.unstored[steps] == pytest.approx(expected)


@pytest.mark.parametrize(("steps", "slots", "write", "read"), PROBLEMS)
def test_disk_revolve_costs_what_the_closed_form_says(steps: int, slots: int, write: int, read: int) -> None:
    schedule = peer.DiskRevolve(steps, slots, uf=1, ub=1, wd=write, rd=read)
    costs = plain_costs(steps, write_seconds=float(write), read_seconds=float(read), message_seconds=0.0)
    budget = Budget(local_bytes=costs.tape_bytes + slots * costs.state_bytes)
    answer = ask(costs=costs, budget=budget, strategies=("disk-revolve",)).best()
    assert answer is not None
    # Where it never frees its disk slots it pays no less: the peer's own plan is the measure.
    assert answer.key[0] - costs.sweep_seconds == pytest.approx(
        cost(schedule, steps=steps, write=write, read=read)
    )
