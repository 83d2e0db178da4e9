"""The recurrent network of PyTorch's word_language_model, on words made up here."""

import torch
from torch import nn

from ckptplan.torch import bptt

torch.manual_seed(0)
ntokens, emsize, nhid, nlayers = 200, 64, 64, 2
dropout = 0.2
batch_size = 20
seq_len = 256  # time steps of a piece of the text

# A text in which most words follow from the word before.
follows = torch.randperm(ntokens).tolist()
corpus = [0]
while len(corpus) < batch_size * (10 * seq_len + 1):
    corpus.append(follows[corpus[-1]] if torch.rand(()) < 0.8 else int(torch.randint(ntokens, ())))
train_data = torch.tensor(corpus).view(batch_size, -1).t().contiguous()


class RNNModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(ntokens, emsize)
        self.rnn = nn.LSTM(emsize, nhid, nlayers)
        self.decoder = nn.Linear(nhid, ntokens)

    def forward(self, input, hidden):
        emb = self.drop(self.encoder(input))
        output, hidden = self.rnn(emb, hidden)
        decoded = self.decoder(self.drop(output))
        return nn.functional.log_softmax(decoded.view(-1, ntokens), dim=1), hidden

    def init_hidden(self):
        return torch.zeros(nlayers, batch_size, nhid), torch.zeros(nlayers, batch_size, nhid)


def repackage_hidden(h):
    return tuple(v.detach() for v in h)


model = RNNModel()
criterion = nn.NLLLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
hidden = model.init_hidden()
for step, i in enumerate(range(0, len(train_data) - 1, seq_len)):
    data, targets = train_data[i : i + seq_len], train_data[i + 1 : i + 1 + seq_len].view(-1)
    optimizer.zero_grad()
    hidden = repackage_hidden(hidden)
    words, pieces = targets.view(-1, 8 * batch_size), data.unflatten(0, (-1, 8))
    cell = lambda state, x: model(x, state)[::-1]
    result = bptt(cell, pieces, hidden, lambda t, out: criterion(out, words[t]) / len(words), memory="6 MB")
    loss, hidden = result.loss, result.state
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
    print(f"{step:3d}  loss {loss.item():.4f}")
