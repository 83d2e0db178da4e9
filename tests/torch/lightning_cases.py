"""A model that Lightning trains with the callback learns what it learns without, within the limit."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import pytest
import torch
from lightning.pytorch.tuner.tuning import Tuner
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from ckptplan import InputError
from ckptplan.torch.lightning import BatchTooLarge, MemoryLimit
from ckptplan.torch.wrapping.wrapped import Wrapped

#: What Lightning warns of: few workers, deprecated calls of PyTorch.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")

STEPS, INPUTS, UNITS, CLASSES = 120, 6, 16, 3
MEMORY = "350 kB"
QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


class Classifier(lightning.LightningModule):
    """A model with two layers that take whole sequences."""

    def __init__(
        self, batch_size: int = 4, samples: int = 10, *, second: type[nn.LSTM | nn.GRU] = nn.LSTM
    ) -> None:
        super().__init__()
        self.batch_size, self.samples = batch_size, samples
        self.rnn = nn.GRU(INPUTS, UNITS, batch_first=True)
        self.more = nn.ModuleDict({"second": second(UNITS, UNITS, batch_first=True)})
        self.head = nn.Linear(UNITS, CLASSES)

    def training_step(self, batch: list[Tensor]) -> Tensor:
        data, target = batch
        outputs, _ = self.more["second"](self.rnn(data)[0])
        return nn.functional.cross_entropy(self.head(outputs[:, -1]), target)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    def train_dataloader(self) -> DataLoader[Any]:
        """Return batches of which the last one is smaller."""
        generator = torch.Generator().manual_seed(0)
        data = torch.randn(self.samples, STEPS, INPUTS, generator=generator)
        target = torch.randint(CLASSES, (len(data),), generator=generator)
        return DataLoader(TensorDataset(data, target), batch_size=self.batch_size)


def train(
    folder: Path, precision: Any, second: type[nn.LSTM | nn.GRU], *callbacks: lightning.Callback
) -> Classifier:
    """Train for an epoch, and for another one from its checkpoint, with clipping and accumulation."""
    path: Path | None = None
    for epochs in (1, 2):
        lightning.seed_everything(0)
        model = Classifier(second=second)
        trainer = lightning.Trainer(
            max_epochs=epochs,
            precision=precision,
            gradient_clip_val=0.5,
            accumulate_grad_batches=2,
            callbacks=list(callbacks),
            default_root_dir=folder,
            **QUIET,
        )
        trainer.fit(model, ckpt_path=path)
        path = folder / f"{epochs}.ckpt"
        trainer.save_checkpoint(path)
    return model


@pytest.mark.parametrize(
    ("precision", "second", "tolerance"),
    # PyTorch's LSTM does not run in mixed precision on processors without AVX-512.
    [("32-true", nn.LSTM, 1e-5), ("bf16-mixed", nn.GRU, 0.02), ("bf16-true", nn.LSTM, 0.02)],
)
def test_training_within_a_limit_ends_with_the_weights_of_plain_training(
    precision: str,
    second: type[nn.LSTM | nn.GRU],
    tolerance: float,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Through two epochs with clipping, accumulation, a smaller last batch and a resume."""
    plain = train(tmp_path, precision, second)
    with caplog.at_level(logging.INFO):
        ours = train(tmp_path, precision, second, MemoryLimit(MEMORY))
    assert isinstance(ours.rnn, Wrapped)
    # Plans of the larger batches run steps again; the last batch is smaller.
    plans = re.findall(r"ckptplan: (\S+): \w+ .*\n.* \+[\d.]+ % over base", caplog.text)
    assert set(plans) == {"rnn", "more.second"}
    expected = plain.state_dict()
    assert list(ours.state_dict()) == list(expected)
    for name, weights in ours.state_dict().items():
        torch.testing.assert_close(weights, expected[name], rtol=tolerance, atol=tolerance)


def test_a_batch_that_no_plan_fits_ends_the_search_of_a_batch_finder(tmp_path: Path) -> None:
    model = Classifier(batch_size=2, samples=512)
    trainer = lightning.Trainer(
        max_epochs=1, callbacks=[MemoryLimit(MEMORY)], default_root_dir=tmp_path, **QUIET
    )
    found = Tuner(trainer).scale_batch_size(model, init_val=2, max_trials=10, steps_per_trial=1)
    assert found is not None
    assert 4 <= found < 512
    with pytest.raises(BatchTooLarge, match="too little"):
        model.rnn(torch.randn(16 * found, STEPS, INPUTS))


def test_only_the_named_modules_are_wrapped(tmp_path: Path) -> None:
    model = Classifier()
    trainer = lightning.Trainer(
        fast_dev_run=True, callbacks=[MemoryLimit("1 MB", modules=["more"])], default_root_dir=tmp_path, **QUIET
    )
    trainer.fit(model)
    assert isinstance(model.more["second"], Wrapped)
    assert not isinstance(model.rnn, Wrapped)
    # A second training finds the layers wrapped.
    trainer.fit(model)


def test_a_name_without_a_layer_is_refused(tmp_path: Path) -> None:
    trainer = lightning.Trainer(
        fast_dev_run=True, callbacks=[MemoryLimit("1 MB", modules=["head"])], default_root_dir=tmp_path, **QUIET
    )
    with pytest.raises(InputError, match=r"modules: has 'head'.*accepted: rnn, more\.second"):
        trainer.fit(Classifier())
