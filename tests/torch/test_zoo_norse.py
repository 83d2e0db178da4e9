"""Every neuron and layer of Norse: gradients under plans are those of its own loop, or it is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import Linear
from torch.utils import _pytree

from ckptplan.torch.adapters import NorseCell
from tests.torch.zoo import Animal, check, find_modules, import_quietly

norse = import_quietly("norse.torch")
MODULES = find_modules(
    "norse.torch",
    without={
        "functional": "functions",
        "models": "networks of these layers, which loop over time",
        "utils": "imports and plots; its CubaLIF is below",
        "module.test": "tests",
    },
)
EXCLUDED = {
    "snn.SNN": "a base class",
    "snn.SNNCell": "a base class",
    "snn.SNNRecurrent": "a base class",
    "snn.SNNRecurrentCell": "a base class",
}
TAKES_SEQUENCES = "takes whole sequences"
#: What neurons are made with, besides their sizes.
IZHIKEVICH = {"spiking_method": norse.tonic_spiking}
GIVEN: dict[str, Any] = {
    **{f"Izhikevich{one}": IZHIKEVICH for one in ("", "Cell", "Recurrent", "RecurrentCell")},
    # Its inputs have no effect, so that it must fire by itself.
    "CobaLIFCell": {"p": norse.CobaLIFParameters(v_thresh=torch.tensor(-30.0)), "dt": 0.5},
}


def dense() -> Linear:
    one = Linear(5, 7)
    torch.nn.init.uniform_(one.weight, 0, 20)
    return one


def make_neuron(one: Any) -> Any:
    """A neuron, behind a dense layer if it has no weights."""
    given = GIVEN.get(one.__name__, {})
    if "Recurrent" in one.__name__ or one.__name__ in ("LILinearCell", "CobaLIFCell"):
        neuron = one(5, 7, **given)
        torch.nn.init.uniform_(neuron.input_weights, 0, 20)
        return neuron
    return norse.SequentialState(dense(), one(**given))


def stepped(make: Any, **given: Any) -> Animal:
    """In single precision, that of Norse's parameters."""
    return Animal(make=make, dtype=torch.float32, relative=2e-5, **given)


def refused(make: Any, why: str = TAKES_SEQUENCES, **given: Any) -> Animal:
    return stepped(make, refused=why, **given)


def neurons() -> dict[str, Animal]:
    """Cells, which take a step, and neurons that loop over time, which do not."""
    snn = import_quietly("norse.torch.module.snn")
    found = {}
    for name, one in MODULES.items():
        if name in EXCLUDED:
            continue
        if issubclass(one, snn.SNNCell | snn.SNNRecurrentCell) or name in CELLS:
            found[name] = stepped(lambda one=one: make_neuron(one))
        elif issubclass(one, snn.SNN | snn.SNNRecurrent):
            found[name] = refused(lambda one=one: make_neuron(one))
    return found


#: Cells that derive from torch.nn.Module only.
CELLS = ("coba_lif.CobaLIFCell", "leaky_integrator.LILinearCell")


class Summed(torch.nn.Module):
    """A cell with a regularization, as Norse documents it."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.regularization = norse.LIFRecurrentCell(5, 7), norse.RegularizationCell()

    def forward(self, x: torch.Tensor, state: Any = None) -> Any:
        spikes, state = self.cell(x, state)
        spikes, total = self.regularization(spikes, state)
        return spikes + total, state


class Correlated(torch.nn.Module):
    """A neuron that is given its weights at each step, and traces of their correlations in its state."""

    def __init__(self) -> None:
        super().__init__()
        self.neuron = norse.LIFCorrelation(5, 7)
        self.inner = torch.nn.Parameter(20 * torch.rand(7, 5))
        self.recurrent = torch.nn.Parameter(torch.rand(7, 7))

    def forward(self, x: torch.Tensor, state: Any = None) -> Any:
        return self.neuron(x, self.inner, self.recurrent, state)


def field(name: str) -> Any:
    """A receptive field of images, behind which are neurons."""
    scales, angles = torch.tensor([1.0, 2.0]), torch.tensor([0.0, 1.0])
    ratios, derivatives = torch.tensor([1.0]), [(0, 0)]
    module = import_quietly("norse.torch.functional.receptive_field")
    one = getattr(norse, name)
    if name == "SpatialReceptiveField2d":
        made = one(1, 3, module.spatial_parameters(scales, angles, ratios, derivatives))
    else:
        made = one(1, 3, scales, angles, ratios, derivatives)
    return norse.SequentialState(made, norse.LIFCell())


def others() -> dict[str, Animal]:
    fields = ("Spatial", "Sampled", "Parameterized")
    names = {"Spatial": "", "Sampled": "Spatial", "Parameterized": "Spatial"}
    encode = import_quietly("norse.torch.module.encode")
    loops = {
        "ConstantCurrentLIFEncoder": (4,), "PoissonEncoder": (4,), "SignedPoissonEncoder": (4,),
        "SpikeLatencyLIFEncoder": (4,), "SpikeLatencyEncoder": (),
    }  # fmt: skip
    return {
        **{
            f"encode.{name}": refused(
                lambda name=name, given=given: norse.SequentialState(getattr(encode, name)(*given), dense())
            )
            for name, given in loops.items()
        },
        **{
            f"receptive_field.{name}{names[name]}ReceptiveField2d": stepped(
                lambda name=name: field(f"{name}{names[name]}ReceptiveField2d"), shape=(2, 1, 4, 4)
            )
            for name in fields
        },
        "receptive_field.TemporalReceptiveField": stepped(
            lambda: norse.SequentialState(dense(), norse.TemporalReceptiveField((7,)))
        ),
        "encode.PoissonEncoderStep": stepped(
            lambda: norse.SequentialState(encode.PoissonEncoderStep(500), dense(), norse.LIFCell()), largest=1
        ),
        "encode.SignedPoissonEncoderStep": stepped(
            lambda: norse.SequentialState(encode.SignedPoissonEncoderStep(500), dense(), norse.LIFCell()),
            largest=1,
        ),
        "encode.PopulationEncoder": stepped(
            lambda: norse.SequentialState(encode.PopulationEncoder(4), norse.LIFCell())
        ),
        "exp_filter.ExpFilter": refused(lambda: norse.SequentialState(_exp_filter()(5, 7))),
        "conv.LConv2d": refused(lambda: norse.SequentialState(norse.LConv2d(1, 2, 3))),
        "lift.Lift": refused(lambda: norse.SequentialState(norse.Lift(dense()), norse.LIFCell())),
        "spikes_to_times_decoder.SpikesToTimesDecoder": refused(
            lambda: norse.SequentialState(dense(), norse.SpikesToTimesDecoder())
        ),
        "regularization.RegularizationCell": refused(Summed, "adds up in an attribute"),
        "lif_correlation.LIFCorrelation": stepped(Correlated, shape=(1, 5)),
        "sequential.SequentialState": stepped(
            lambda: norse.SequentialState(
                dense(), norse.LIFCell(), norse.SequentialState(norse.LIFRecurrentCell(7, 4), norse.LICell())
            )
        ),
        "sequential.RecurrentSequential": stepped(
            lambda: norse.RecurrentSequential(Linear(5, 5), norse.LIFCell())
        ),
        "torch.RNN": refused(lambda: norse.SequentialState(dense(), torch.nn.RNN(7, 7))),
        "CubaLIF": stepped(_cuba),
        **{
            f"{name}, adjoint": stepped(lambda name=name: norse.SequentialState(dense(), _adjoint(name)))
            for name in ("LSNNCell",)
        },
    }


def _exp_filter() -> Any:
    return import_quietly("norse.torch.module.exp_filter").ExpFilter


def _adjoint(name: str) -> Any:
    return getattr(norse, name)(adjoint=True)


def _cuba() -> Any:
    one = import_quietly("norse.torch.utils.import_nir").CubaLIF
    synapse, neuron = norse.LIBoxCell(), norse.LIFBoxCell()
    return norse.SequentialState(dense(), one(torch.tensor(2.0), synapse, torch.tensor(1.5), neuron))


ANIMALS = {**neurons(), **others()}


def run(cell: Any, inputs: list[Any], state: Any) -> tuple[list[Any], Any]:
    """Norse's own loop: ``output, state = cell(x, state)``."""
    outputs = []
    # SequentialState changes the list of states that it is given.
    state = _pytree.tree_map(lambda leaf: leaf, state)
    for x in inputs:
        output, state = cell.module(x, state)
        outputs.append(output)
    return outputs, state


def test_every_class_of_the_package_is_here_or_left_out_for_a_reason() -> None:
    added = {"torch.RNN", "CubaLIF", "LSNNCell, adjoint"}
    assert set(ANIMALS) - added | set(EXCLUDED) == set(MODULES)


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("name", ANIMALS)
def test_gradients_are_those_of_its_own_loop(name: str, mode: str) -> None:
    check(ANIMALS[name], NorseCell, run, mode=mode)
