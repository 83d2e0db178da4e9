"""Layers inside a model are named or replaced, the last output is returned alone, wrong axes are warned of."""

from __future__ import annotations

import copy
import re
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import rnn

from ckptplan import InputError
from ckptplan.torch import wrap, wrap_layers
from tests.torch.support import assert_close, read_least
from tests.torch.zoo import import_quietly

functional, layer, neuron = (
    import_quietly(f"spikingjelly.activation_based.{name}") for name in ("functional", "layer", "neuron")
)
KINDS = {"LSTM": nn.LSTM, "GRU": nn.GRU, "RNN": nn.RNN}


class Classifier(nn.Module):
    """An embedding, recurrent layers, and a readout of the last output."""

    def __init__(self, kind: str = "LSTM") -> None:
        super().__init__()
        self.embed = nn.Linear(5, 7)
        self.rnn = KINDS[kind](7, 9, batch_first=True)
        self.read = nn.Linear(9, 2)

    def forward(self, x: Tensor) -> Any:
        outputs, _ = self.rnn(self.embed(x))
        return self.read(outputs[:, -1])


class Stack(nn.Module):
    """Layers of two kinds in a list, of which one is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.LSTM(5, 5), nn.GRU(5, 5)])
        self.again = self.layers[0]

    def forward(self, x: Tensor) -> Any:
        for one in (*self.layers, self.again):
            x, _ = one(x)
        return x


def gradients(model: nn.Module, output: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(output.square().sum(), list(model.parameters())))


def differentiate(model: nn.Module, *inputs: Any) -> list[Tensor]:
    """Return the outputs of a model, and the gradients of its parameters."""
    output = model(*inputs)
    return [output.detach(), *gradients(model, output)]


# Layers of a model that is wrapped as a whole


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("multi_step", [None, True])
def test_a_layer_inside_that_takes_whole_sequences_is_named_with_the_line_to_write(
    kind: str, multi_step: bool | None
) -> None:
    model = wrap(Classifier(kind), memory="1 MB", multi_step=multi_step)
    with pytest.raises(InputError, match=r"its layer model\.rnn, .*, takes a whole sequence") as refusal:
        model(torch.randn(4, 30, 5))
    assert "model.rnn = wrap(model.rnn, memory='1 MB')" in str(refusal.value)
    assert str(refusal.value).count("accepted") == 1
    with pytest.raises(InputError, match=r"model\[1\] = wrap\(model\[1\], memory='1 MB'\)"):
        wrap(nn.Sequential(nn.Linear(5, 7), KINDS[kind](7, 2)), memory="1 MB")(torch.randn(30, 4, 5))


def test_a_module_that_hands_a_step_to_its_layer_is_right() -> None:
    class ByStep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.state = nn.GRU(5, 7), torch.zeros(1, 3, 7)

        def forward(self, x: Tensor) -> Any:
            _, self.state = self.rnn(x.unsqueeze(0), self.state)
            return self.state

    model, data = ByStep(), torch.randn(30, 3, 5)
    outputs = wrap(copy.deepcopy(model), memory="100 kB")(data)
    assert_close([outputs.detach()], [torch.stack([model(x) for x in data]).detach()], relative=1e-5)


# wrap_layers


@pytest.mark.parametrize("kind", KINDS)
def test_layers_are_replaced_under_their_names(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    model, data = Classifier(kind), torch.randn(4, 60, 5)
    expected, names = differentiate(model, data), list(model.state_dict())
    assert wrap_layers(model, memory="1 MB") is model
    assert capsys.readouterr().out == f"model.rnn: {kind}, within 1 MB (100%)\n"
    assert_close(differentiate(model, data), expected, relative=1e-5)
    assert list(model.state_dict()) == names == list(Classifier(kind).state_dict())
    model.load_state_dict(Classifier(kind).state_dict())


def test_layers_share_the_limit_and_a_layer_in_two_places_stays_one(capsys: pytest.CaptureFixture[str]) -> None:
    model, data = Stack(), torch.randn(60, 4, 5)
    expected = differentiate(model, data)
    wrap_layers(model, memory="1 MB")
    assert model.again is model.layers[0]
    shares = [line.partition(": ")[2] for line in capsys.readouterr().out.splitlines()]
    assert shares == ["LSTM, within 526 kB (53%)", "GRU, within 473 kB (47%)"]
    assert_close(differentiate(model, data), expected, relative=1e-5)
    # Plans have the units of the shared limit.
    assert all(" kB local" in str(layer.plan) for layer in model.layers)


def test_a_share_that_is_too_small_says_which_limit_is_enough() -> None:
    memory, data, refused = "10 kB", torch.randn(60, 4, 5), []
    for _ in range(4):
        model = wrap_layers(Stack(), memory=memory)
        try:
            model(data).sum().backward()
            break
        except InputError as error:
            refused.append(error.message.partition(" has ")[0])
            memory = re.search(r'at least memory="([^"]+)" for wrap_layers', str(error))[1]  # type: ignore[index]
    else:
        raise AssertionError(refused)
    assert refused[0] == "model.layers[0]"


def test_neurons_in_multi_step_mode_are_replaced() -> None:
    model = nn.Sequential(
        layer.Linear(5, 7), neuron.LIFNode(detach_reset=True), layer.Linear(7, 2), neuron.IFNode()
    )
    functional.set_step_mode(model, "m")
    data = 3 * torch.rand(40, 4, 5)
    expected = differentiate(model, data)
    functional.reset_net(model)
    wrap_layers(model, memory="1 MB")
    assert_close(differentiate(model, data), expected, relative=1e-5)
    assert model[1].plan is not None


@pytest.mark.parametrize("model", [nn.Linear(3, 3), nn.LSTM(3, 3), 3])
def test_a_model_without_such_layers_is_refused(model: Any) -> None:
    with pytest.raises(InputError, match="model: "):
        wrap_layers(model, memory="1 MB")


def test_a_layer_that_a_list_has_twice_is_replaced_in_both_places() -> None:
    lstm = nn.LSTM(3, 4)
    model = wrap_layers(nn.ModuleList([lstm, lstm]), memory="1 MB")
    assert model[0] is model[1]
    assert not isinstance(model[0], nn.LSTM)


def test_dropout_of_spikingjelly_is_no_neuron(capsys: pytest.CaptureFixture[str]) -> None:
    """Its mask is a memory of the module, but no state."""
    model = nn.Sequential(nn.Linear(3, 4), layer.Dropout(0.5, step_mode="m"), neuron.LIFNode(step_mode="m"))
    wrap_layers(model, memory="1 MB")
    assert "Dropout" not in capsys.readouterr().out


# The last output in place of all


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_the_last_output_of_each_sequence_is_returned(
    kind: str, bidirectional: bool, batch_first: bool
) -> None:
    net = KINDS[kind](5, 7, num_layers=2, bidirectional=bidirectional, batch_first=batch_first).double()
    x = torch.randn(4, 30, 5, dtype=torch.float64)
    x = x if batch_first else x.transpose(0, 1)
    packed = rnn.pack_padded_sequence(x, [9, 30, 1, 8], batch_first=batch_first, enforce_sorted=False)
    ours = wrap(net, memory="400 kB", outputs="last")
    for inputs in (x, packed, x[0] if batch_first else x[:, 0]):
        plain, hidden = net(inputs)
        if isinstance(plain, rnn.PackedSequence):
            padded, lengths = rnn.pad_packed_sequence(plain, batch_first=True)
            plain = torch.stack([outputs[length - 1] for outputs, length in zip(padded, lengths, strict=True)])
        else:
            plain = plain[:, -1] if batch_first and plain.dim() == 3 else plain[-1]
        last, final = ours(inputs)
        pairs = [[one.detach() for one in found] for found in ((last, *final), (plain, *hidden))]
        assert_close(*pairs, relative=1e-9)
        assert_close(gradients(net, last), gradients(net, plain), relative=1e-9)
        with torch.no_grad():
            assert_close([ours(inputs)[0]], [plain.detach()], relative=1e-9)


def test_outputs_that_are_not_kept_need_no_memory() -> None:
    net, x = nn.LSTM(5, 64), torch.randn(400, 4, 5)
    needs = {}
    for outputs in ("all", "last"):
        with pytest.raises(InputError, match="too little") as refusal:
            wrap(net, memory="1 kB", outputs=outputs)(x)
        needs[outputs] = read_least(refusal.value)
    assert needs["last"] < needs["all"] - 1.9 * 400 * 4 * 64 * 4
    wrap(net, memory=int(1.1 * needs["last"]), outputs="last")(x)[0].sum().backward()


@pytest.mark.parametrize(("net", "outputs"), [(nn.LSTM(3, 3), "first"), (nn.GRUCell(3, 3), "last")])
def test_other_outputs_are_refused(net: nn.Module, outputs: Any) -> None:
    with pytest.raises(InputError, match="outputs: "):
        wrap(net, memory="1 MB", outputs=outputs)


# Time on the wrong axis


class Leaky(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.state = nn.Linear(5, 7), torch.zeros(1)

    def reset(self) -> None:
        self.state = torch.zeros(1)

    def forward(self, x: Tensor) -> Any:
        self.state = 0.9 * self.state + torch.tanh(self.enter(x))
        return self.state


def test_a_loop_around_the_call_is_warned_of_once() -> None:
    net, gru = wrap(Leaky(), memory="1 MB"), wrap(nn.GRU(5, 7), memory="1 MB")
    data = torch.randn(12, 3, 5).split(1)

    def hand_on() -> None:
        state = None
        for x in data:
            _, state = gru(x, state)

    for loop in (lambda: [net(x) for x in data], hand_on):
        with pytest.warns(UserWarning, match="Is there a loop over time around the call") as caught:
            loop()
        assert len(caught) == 1


@pytest.mark.parametrize("is_layer", [False, True])
def test_a_batch_on_the_first_axis_is_warned_of_once(is_layer: bool) -> None:
    net = wrap(nn.LSTM(5, 7), memory="1 MB") if is_layer else wrap(Leaky(), memory="1 MB", reset=Leaky.reset)
    with pytest.warns(UserWarning, match="as if the first axis were the batch") as caught:
        _ = [net(torch.randn(4, length, 5)) for length in (30, 25, 40, 31, 26, 22)]
    assert len(caught) == 1


def test_usual_calls_do_not_warn() -> None:
    """Siamese calls, sums of gradients, a last batch, lengths that vary, one time step, truncated sequences."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net = wrap(Leaky(), memory="1 MB", reset=Leaky.reset)
        for _ in range(4):
            left, right = net(torch.randn(6, 8, 5)), net(torch.randn(6, 8, 5))
            (left - right).square().mean().backward()
        for batch in (32, 32, 32, 17, 32, 32, 32, 17):
            net(torch.randn(6, batch, 5))
        for steps in (7, 9, 8, 30):
            net(torch.randn(steps, 3, 5))
        for _ in range(5):
            net(torch.randn(1, 3, 5))
        batch_first = wrap(nn.GRU(5, 7, batch_first=True), memory="1 MB")
        for length in (30, 25, 40, 31, 26):
            batch_first(torch.randn(4, length, 5))
        truncated = wrap(Leaky(), memory="1 MB", detach=True)
        for _ in range(5):
            truncated(torch.randn(1, 3, 5)).sum().backward()
        with torch.no_grad():
            online = wrap(Leaky(), memory="1 MB")
            for _ in range(5):
                online(torch.randn(1, 3, 5))


def test_a_learned_first_state_is_no_state_of_an_earlier_call() -> None:
    net = wrap(nn.GRU(3, 4), memory="1 MB")
    first = nn.Parameter(torch.zeros(1, 1, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(6):
            net(torch.randn(1, 2, 3), first.expand(1, 2, 4) * 1.0)[0].sum().backward()
