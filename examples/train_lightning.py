"""A spiking network in Lightning's Trainer: truncated backpropagation within a limit of memory."""

import lightning
import snntorch
import torch
from snntorch import utils
from torch.nn.functional import cross_entropy, one_hot
from torch.utils.data import DataLoader, TensorDataset

from ckptplan.torch import wrap

STEPS, CHUNK = 512, 256


class BusiestChannel(lightning.LightningModule):
    """Finds the channel with most spikes; one step of the optimizer for each chunk of a sequence."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        net = torch.nn.Sequential(
            torch.nn.Linear(3, 32),
            snntorch.Leaky(beta=0.95, init_hidden=True),
            torch.nn.Linear(32, 3),
            snntorch.Leaky(beta=0.95, init_hidden=True, output=True),
        )
        self.net = wrap(net, memory="400 kB", detach=True)

    def training_step(self, batch, batch_index):
        """Train on a batch of shape (B, T, ...)."""
        data, target = batch
        optimizer = self.optimizers()
        utils.reset(self.net)  # a new sequence: from here on, the state is carried from chunk to chunk
        for chunk in data.transpose(0, 1).split(CHUNK):
            spikes, _ = self.net(chunk)
            loss = cross_entropy(spikes.mean(0), target)
            optimizer.zero_grad()
            self.manual_backward(loss)
            self.clip_gradients(optimizer, gradient_clip_val=1.0)
            optimizer.step()
        self.log("loss", loss)
        print(f"{batch_index:3d}  loss {loss.item():.3f}")

    def configure_optimizers(self):
        """Return the optimizer."""
        return torch.optim.Adam(self.parameters(), lr=2e-2)


if __name__ == "__main__":
    lightning.seed_everything(0)
    target = torch.randint(3, (160,))
    data = (torch.rand(160, STEPS, 3) < 0.1 + 0.7 * one_hot(target, 3).unsqueeze(1)).float()
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(BusiestChannel(), DataLoader(TensorDataset(data, target), batch_size=16))
