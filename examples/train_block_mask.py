"""Trains a small causal language model with a block mask, and the same model with the mask element
by element in PyTorch's attention, from the same weights on the same data: the losses agree.

The language is made here. A word mostly repeats the one that stood LAG places before it, so that
the loss falls only where attention finds that place; other words are drawn at random."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from common import arguments, check, choose_device, fail, milliseconds, name_of, whole_number
from torch import nn

import tessera

WORDS, LAG, REPEATED, HEAD, LAYERS, SHOWN = 32, 5, 0.9, 64, 2, 50

parser = arguments(__doc__)
parser.add_argument("--length", type=whole_number(16), default=512, help="words of a text")
parser.add_argument("--batch", type=whole_number(1), default=2, help="texts of a step")
parser.add_argument("--width", type=whole_number(HEAD, HEAD), default=128, help="of the model")
parser.add_argument("--block", type=whole_number(16, 16), default=64, help="words of a block")
parser.add_argument("--steps", type=whole_number(1), default=200)
parser.add_argument("--seeds", type=whole_number(1), default=3, help="trainings of each kind")
options = parser.parse_args()
length, width, block = options.length, options.width, options.block
device, dtype = choose_device(options.device)


def has_gradients():
    x = torch.zeros(1, 64, 1, HEAD, device=device, dtype=dtype, requires_grad=True)
    try:
        return tessera.attention(x, x, x).requires_grad
    except NotImplementedError:
        return False


if not has_gradients():
    if options.device == "cuda":
        fail("--device: expected cpu or auto, got cuda: attention has no gradients there")
    device, dtype = choose_device("cpu")

# Each block of words sees itself, the one before it, and the first one of the text.
rows = -(-length // block)
blocks = tessera.patterns.bigbird(rows, rows, half_width=1, globals=1, random=0)
blocks &= np.tri(rows, dtype=bool)
mask = tessera.BlockMask.from_blocks(blocks, length, length, block).to(device)
places = torch.arange(length, device=device)
seen = torch.from_numpy(blocks).to(device)[places[:, None] // block, places // block]
seen &= places <= places[:, None]


def sparse(q, k, v):
    return tessera.attention(q, k, v, causal=True, mask=mask)


def dense(q, k, v):
    return F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)),
                                          seen).transpose(1, 2)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.before = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(),
                                 nn.Linear(4 * width, width))

    def forward(self, x, attention):
        qkv = self.qkv(self.before[0](x)).unflatten(-1, (3, width // HEAD, HEAD))
        # Under autocast a linear layer gives 16 bits; attention gets q, k and v as they are.
        x = x + self.out(attention(*qkv.unbind(2)).flatten(2))
        return x + self.mlp(self.before[1](x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.last = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, WORDS))

    def forward(self, text, attention):
        x = self.words(text) + self.places.weight
        for layer in self.layers:
            x = layer(x, attention)
        return self.last(x)

    def loss(self, text, attention):
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            guesses = self(text[:, :-1], attention).float()
        return F.cross_entropy(guesses.flatten(0, 1), text[:, 1:].flatten())


def texts(generator):
    """[batch, length + 1]: the same on every device."""
    shape = (options.batch, length + 1)
    made = torch.randint(WORDS, shape, generator=generator)
    repeats = torch.rand(shape, generator=generator) < REPEATED
    for at in range(LAG, length + 1):
        made[:, at] = torch.where(repeats[:, at], made[:, at - LAG], made[:, at])
    return made.to(device)


def train(name, attention, seed):
    """The mean loss of the last tenth of the steps, and the milliseconds of a step."""
    torch.manual_seed(seed)
    model, generator = Model().to(device), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses = []

    def step(text):
        loss = model.loss(text, attention)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    print(f"seed {seed}, {name:16}", end="", flush=True)
    for number in range(1, options.steps + 1):
        losses.append(step(texts(generator)))
        if number % SHOWN == 0 or number == options.steps:
            print(f"{number:6}:{float(losses[-1]):6.3f}", end="", flush=True)
    text = texts(generator)
    took = milliseconds(lambda: step(text), device)
    print(f"{took:10.1f} ms a step")
    last = float(torch.stack(losses[-max(1, options.steps // 10):]).mean())
    return float(losses[0]), last


print(f"{LAYERS} layers of {width}, {options.batch} texts of {length} words a step, {dtype} on "
      f"{name_of(device)}".replace("torch.", ""))
print(f"blocks of {block}: a word sees {blocks.sum() / np.tri(rows).sum():.0%} of the blocks up to "
      f"its own; loss by step:\n")
ends = {"block mask": [], "element mask": []}
for seed in range(options.seeds):
    for name, attention in zip(ends, (sparse, dense), strict=True):
        first, last = train(name, attention, seed)
        ends[name].append(last)
ours, theirs = (sum(x) / len(x) for x in ends.values())
print(f"\nmean loss of the last tenth of the steps: {ours:.4f} with the block mask, {theirs:.4f} "
      f"with the element mask; without attention at best about {math.log(WORDS):.2f}")
check("difference of the losses, of the dense one", abs(ours - theirs) / theirs, 0.01)
check("loss after training, of that before", last / first, 0.9 if options.steps >= 200 else 1.0)
