"""Trains an MLP, keeps its heaviest blocks of weights alone, and trains these further.

The task is made here: 32 sensors of 16 values each, and a label that depends on eight of them. The
heaviest blocks find these eight, and further training recovers most of what pruning cost."""

import torch
import torch.nn.functional as F
from common import arguments, check, choose_device, milliseconds, name_of, share, whole_number
from torch import nn

from tessera.nn import BsrLinear

SENSORS, VALUES, USED, HIDDEN, CLASSES, BLOCK = 32, 16, 8, 512, 10, 16

parser = arguments(__doc__)
parser.add_argument("--density", type=share, default=0.1, help="share of blocks to keep")
parser.add_argument("--steps", type=whole_number(1), default=150, help="steps of each training")
options = parser.parse_args()
device, dtype = choose_device(options.device)
torch.manual_seed(0)

teacher = nn.Sequential(nn.Linear(USED * VALUES, 64), nn.Tanh(), nn.Linear(64, CLASSES)).to(device)
used = torch.randperm(SENSORS)[:USED].to(device)


def samples(count):
    with torch.no_grad():
        x = torch.randn(count, SENSORS, VALUES, device=device)
        return x.flatten(1), teacher(x[:, used].flatten(1)).argmax(1)


def logits_of(model, x):
    with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
        return model(x).float()


def loss_of(model, x, labels):
    return F.cross_entropy(logits_of(model, x), labels)


def train(model):
    """Returns the milliseconds of a step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1)

    def step():
        loss = loss_of(model, *samples(256))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    for _ in range(options.steps):
        step()
    x, labels = samples(256)
    return milliseconds(lambda: loss_of(model, x, labels).backward(), device)


test = samples(4096)


def report(name, model, step_ms=None):
    """Prints a row of the table; returns the loss."""
    x, labels = test
    with torch.no_grad():
        logits = logits_of(model, x)
    loss = float(F.cross_entropy(logits, labels))
    accuracy = float((logits.argmax(1) == labels).float().mean())
    weights = sum(x.numel() for x in model.parameters())
    print(f"{name:12}{loss:8.3f}{accuracy:10.1%}{weights:12,}"
          + (f"{step_ms:14.2f} ms" if step_ms else ""))
    return loss


def pruned(model, density):
    """The same model with the heaviest blocks of its large layers. The small last one stays."""
    return nn.Sequential(*(
        BsrLinear.from_linear(layer, BLOCK, density=density)
        if isinstance(layer, nn.Linear) and layer.out_features == HIDDEN else layer
        for layer in model))


model = nn.Sequential(nn.Linear(SENSORS * VALUES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN),
                      nn.ReLU(), nn.Linear(HIDDEN, CLASSES)).to(device)
print(f"MLP {SENSORS * VALUES}-{HIDDEN}-{HIDDEN}-{CLASSES} on {name_of(device)}; blocks of {BLOCK} "
      f"x {BLOCK}, {options.density:.0%} of them kept\n")
print(f"{'':12}{'loss':>8}{'accuracy':>10}{'weights':>12}{'step':>17}")
step_ms = train(model)
dense = report("dense", model, step_ms)
model = pruned(model, options.density)
cut = report("pruned", model)
step_ms = train(model)
tuned = report("fine-tuned", model, step_ms)

# Which sensors the first layer still reads, and how often.
blocks = model[0].weight.col_indices.bincount(minlength=SENSORS)
found = int(blocks[used].sum()) / max(1, int(blocks.sum()))
print(f"\n{found:.0%} of the blocks kept in the first layer read a sensor that matters")
check("loss after fine-tuning", tuned, (dense + cut) / 2)
