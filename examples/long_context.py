"""Sparse attention over a long document, with gradients, beside dense attention in PyTorch.

Each block of tokens sees its neighbours, the beginning of the document and a few random blocks
before it (BigBird), so that the work grows with the length, not with its square."""

import numpy as np
import torch
import torch.nn.functional as F
from common import arguments, check, choose_device, milliseconds, name_of, whole_number

import tessera

parser = arguments(__doc__)
parser.add_argument("--length", type=whole_number(2), default=4096, help="tokens")
parser.add_argument("--heads", type=whole_number(1), default=4)
parser.add_argument("--block", type=whole_number(16, 16), default=64, help="tokens of a block")
options = parser.parse_args()
length, block = options.length, options.block
device, dtype = choose_device(options.device)
torch.manual_seed(0)

# Which block of queries visits which block of keys: booleans, one per block.
rows = -(-length // block)
earlier = np.tri(rows, dtype=bool)
blocks = tessera.patterns.bigbird(rows, rows, half_width=2, globals=1, random=2) & earlier
mask = tessera.BlockMask.from_blocks(blocks, length, length, block).to(device)
visited = blocks.sum() / earlier.sum()
lists = sum(x.nbytes for x in (mask.full_counts, mask.full_indices))

q, k, v = (torch.randn(1, options.heads, length, 64, device=device, dtype=dtype, requires_grad=True)
           for _ in range(3))


def sparse():
    return tessera.attention(q, k, v, causal=True, mask=mask, layout="bhld")


def dense():
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def gradients(attention, weight):
    return torch.autograd.grad((attention() * weight).sum(), (q, k, v))


def reference(queries):
    """PyTorch's attention of some queries in float64, under the same mask element by element."""
    keys = torch.arange(length, device=device)
    seen = torch.from_numpy(blocks).to(device)[queries // block][:, keys // block]
    seen &= keys <= queries[:, None]
    return F.scaled_dot_product_attention(q[:, :, queries].double(), k.double(), v.double(), seen)


def largest_error(got, want):
    """Beside the largest value that is wanted."""
    return float((got.double() - want).abs().max() / want.abs().max())


print(f"{length} tokens, {options.heads} heads of 64, {dtype} on {name_of(device)}".replace(
    "torch.", ""))
print(f"each query visits {visited:.1%} of the blocks before it; their lists take {lists:,} bytes, "
      f"booleans for every pair would take {length * length:,}\n")

# Errors, of as many blocks of queries as float64 has room for. A loss that reads these alone has
# gradients that are theirs.
room = max(1, 2**25 // (options.heads * length * block))
chosen = torch.randperm(rows)[:room].sort().values
queries = (chosen[:, None] * block + torch.arange(block)).flatten()
queries = queries[queries < length].to(device)
weight = torch.zeros_like(q)
weight[:, :, queries] = torch.randn_like(weight[:, :, queries])
want = reference(queries)
with torch.no_grad():
    errors = {"out": largest_error(sparse()[:, :, queries], want)}
backward = True
try:
    ours = gradients(sparse, weight)
except NotImplementedError:
    backward = False
else:
    theirs = torch.autograd.grad((want * weight[:, :, queries]).sum(), (q, k, v))
    errors |= {f"d{x}": largest_error(a, b) for x, a, b in zip("qkv", ours, theirs, strict=True)}

print(f"{'':20}{'tessera':>12}{'torch, dense':>16}{'speed-up':>12}")


def line(name, call):
    """A row of the table: the time of both, on a GPU their memory too."""
    ms, peak = [], []
    for attention in (sparse, dense):
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        ms.append(milliseconds(lambda: call(attention), device))  # noqa: B023
        if device.type == "cuda":
            peak.append(torch.cuda.max_memory_allocated() / 2**20)
    print(f"{name:20}{ms[0]:9.2f} ms{ms[1]:13.2f} ms{ms[1] / ms[0]:11.1f}x")
    if peak:
        print(f"{'  peak memory':20}{peak[0]:8.0f} MiB{peak[1]:12.0f} MiB")


with torch.no_grad():
    line("forward", lambda attention: attention())
if backward:
    line("with gradients", lambda attention: gradients(attention, weight))
else:
    print("with gradients      no kernel for this device yet: --device cpu has them")

limit = 1e-4 if dtype == torch.float32 else 3e-2
print("\nerror beside float64, of the largest value: "
      + ", ".join(f"{name} {error:.1e}" for name, error in errors.items()))
for name, error in errors.items():
    check(f"{name} beside float64", error, limit)
