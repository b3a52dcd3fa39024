"""Reads a sparse matrix from a Matrix Market file, finds the blocks that suit it, and multiplies.

Small blocks store few zeros beside the elements, large ones are faster for each element stored.
Without a file, a matrix like those of finite elements is made: a square of nodes, each with three
unknowns that meet those of the eight nodes around it."""

import importlib.util
import tempfile
from pathlib import Path

import numpy as np
from common import arguments, check, choose_device, fail, milliseconds, name_of, whole_number

import tessera

parser = arguments(__doc__)
parser.add_argument("file", nargs="?", type=Path, help="a .mtx file")
parser.add_argument("--columns", type=whole_number(1), default=64, help="of the dense matrix")
parser.add_argument("--picture", type=Path, default=Path("pattern.svg"), help="a .svg to write")
options = parser.parse_args()
if options.picture.suffix != ".svg":
    fail(f"--picture: pictures are SVG: expected a name that ends in .svg, got {options.picture}")


MOST_STORED = 2**25  # values: of larger blocks that are nearly empty, memory would run out


def write_elements(path, nodes=24, unknowns=3):
    """The lower half of a symmetric matrix, as a Matrix Market file."""
    rng = np.random.default_rng(0)
    lines = []
    for row, col in np.ndindex(nodes * nodes, nodes * nodes):
        (y, x), (v, u) = divmod(row, nodes), divmod(col, nodes)
        if col <= row and abs(y - v) <= 1 and abs(x - u) <= 1:
            first = row * unknowns + 1, col * unknowns + 1
            lines += [f"{first[0] + i} {first[1] + j} {rng.standard_normal():.9g}"
                      for i, j in np.ndindex(unknowns, unknowns) if col < row or j <= i]
    size = nodes * nodes * unknowns
    path.write_text("%%MatrixMarket matrix coordinate real symmetric\n"
                    f"{size} {size} {len(lines)}\n" + "\n".join(lines) + "\n")


def write_picture(path, coo, width=256, levels=8):
    """Where the elements are, as grey cells of an SVG: the more elements, the darker."""
    cell = max(1, -(-max(coo.shape) // width))
    height, width = (-(-n // cell) for n in coo.shape)
    count = np.zeros((height, width))
    np.add.at(count, (coo.row // cell, coo.col // cell), 1)
    grey = np.ceil(levels * np.sqrt(count / max(1, count.max())))
    paths = []
    for level in range(1, levels + 1):
        cells = "".join(f"M{x} {y}h1v1h-1z" for y, x in np.argwhere(grey == level))
        paths.append(f'<path fill-opacity="{level / levels}" d="{cells}"/>\n' if cells else "")
    path.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
                    'shape-rendering="crispEdges">\n'
                    '<rect width="100%" height="100%" fill="white"/>\n'
                    + "".join(paths) + "</svg>\n")


def padded(size, block):
    return -(-size // block) * block


# ---- The matrix --------------------------------------------------------------------------------

try:
    if options.file is None:
        with tempfile.TemporaryDirectory() as folder:
            write_elements(Path(folder, "elements.mtx"))
            coo = tessera.read_matrix_market(Path(folder, "elements.mtx"))
    else:
        coo = tessera.read_matrix_market(options.file)
    write_picture(options.picture, coo)
except OSError as error:
    fail(error)
rows, cols = coo.shape
elements = len(coo.value)
if elements == 0:
    fail(f"file: expected a matrix with elements, got {rows} x {cols} without any")
x = np.random.default_rng(1).standard_normal((cols, options.columns), dtype=np.float32)

# Arrays in NumPy, or on a GPU in PyTorch.
device, on_device, where = None, lambda array: array, "the CPU"
limit = 1e-5
if options.device == "cuda" or (options.device == "auto" and tessera.cuda_device_count() > 0):
    if importlib.util.find_spec("torch") is None:
        fail("--device: expected cpu, got a GPU without PyTorch")
    import torch

    device, dtype = choose_device(options.device)
    where = name_of(device)
    limit = 1e-5 if dtype == torch.float32 else 3e-2

    def on_device(array):
        return torch.from_numpy(array).to(device, dtype)


# ---- The blocks --------------------------------------------------------------------------------


def stored_blocks(block):
    places = coo.row // block * padded(cols, block) + coo.col // block
    return len(np.unique(places))


def packed(block):
    """The matrix in blocks and the other one; zeros fill up whole blocks."""
    shape = (padded(rows, block), padded(cols, block))
    matrix = tessera.BsrMatrix.from_coo(*coo[:3], shape, block)
    matrix = matrix.with_values(on_device(matrix.values))
    return (matrix if device is None else matrix.to(device),
            on_device(np.pad(x, ((0, shape[1] - cols), (0, 0)))))


stored = {block: stored_blocks(block) for block in (1, 2, 3, 4, 6, 8, 12, 16, 32)}
fill = {block: elements / (stored[block] * block**2) for block in stored}
problems = {block: packed(block) for block in stored if elements / fill[block] <= MOST_STORED}
usable = [block for block, problem in problems.items()
          if tessera.explain(tessera.bsr_matmul, *problem)["supported"]]
if not usable:
    fail(f"no block size of {list(stored)} has a kernel on {where} and room in memory")
# The largest whose stored values are elements for the greater part, else the fullest.
chosen = max((block for block in usable if fill[block] >= 0.5), default=max(usable, key=fill.get))

print(f"{rows} x {cols}, {elements:,} elements, times a dense matrix of {options.columns} columns "
      f"on {where}\n")
print(f"{'block':>6}{'stored':>10}{'fill':>8}{'time':>14}")
for block in usable:
    matrix, dense = problems[block]
    ms = milliseconds(lambda: matrix @ dense, device)  # noqa: B023
    print(f"{block:6}{stored[block]:10,}{fill[block]:8.1%}{ms:11.3f} ms"
          + "   chosen" * (block == chosen))

# ---- The check ---------------------------------------------------------------------------------

matrix, dense = problems[chosen]
product = matrix @ dense
product = np.asarray(product if device is None else product.float().cpu())[:rows]
if importlib.util.find_spec("scipy") is None:
    reference, judge = np.zeros((rows, options.columns)), "a sum in NumPy"
    np.add.at(reference, coo.row, coo.value[:, None].astype(np.float64) * x[coo.col])
else:
    import scipy.sparse

    csr = scipy.sparse.coo_matrix((coo.value, (coo.row, coo.col)), coo.shape).tocsr()
    reference, judge = csr.astype(np.float64) @ x, "SciPy"
    print(f"SciPy, CSR on the CPU   {milliseconds(lambda: csr @ x):11.3f} ms")
error = float(np.abs(product - reference).max() / (np.abs(reference).max() or 1))
print(f"\nlargest error beside {judge}, of the largest value: {error:.1e}")
print(f"picture of the pattern: {options.picture}")
check("the product beside the reference", error, limit)
