"""Arrays of NumPy on the CPU if it has the dtype, else of PyTorch."""

import numpy as np

NUMPY_DTYPES = {"f32": np.float32, "f16": np.float16}
# Bits of the significand, including the leading one.
PRECISION = {"f32": 24, "f16": 11, "bf16": 8, "e4m3": 4}
BYTES = {"f32": 4, "f16": 2, "bf16": 2, "e4m3": 1}
E4M3_MAX, E4M3_LOWEST_EXPONENT = 448.0, -5  # of the smallest normal number, as frexp gives it


def torch_dtype(dtype):
    import torch

    return {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
            "e4m3": torch.float8_e4m3fn}[dtype]


def normal(shape, dtype, device, seed):
    """Random normal data: zeros or small integers would draw less power and run faster."""
    if device == "cpu":
        made = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
        if dtype in NUMPY_DTYPES:
            return made.astype(NUMPY_DTYPES[dtype], copy=False)
        import torch

        return torch.from_numpy(made).to(torch_dtype(dtype))
    import torch

    generator = torch.Generator(device=device).manual_seed(seed)
    return torch.randn(shape, dtype=torch_dtype(dtype), device=device, generator=generator)


def quantized(x, count):
    """x [.., heads, dim] in e4m3, and its factors: one, or a factor for each head, of which `count`
    differ, as neighbouring heads share them."""
    x, heads = x.float(), x.shape[-2]
    largest = x.abs().amax((*range(x.ndim - 2), x.ndim - 1)).reshape(count, -1).amax(1)
    each = (largest / E4M3_MAX).repeat_interleave(heads // count)
    narrow = (x / each[:, None]).clamp(-E4M3_MAX, E4M3_MAX).to(torch_dtype("e4m3"))
    return narrow, each[: heads if count > 1 else 1].clone()


def by_keys(x):
    """x [.., length, heads, dim] with a contiguous length, in lines of a multiple of 16 bytes."""
    *outer, length, heads, dim = x.shape
    lines = x.new_empty((*outer, heads, dim, -(-length // 16) * 16))
    return lines[..., :length].movedim(-1, -3).copy_(x)


def quantized_boxes(x, box):
    """x [.., rows, cols] in e4m3, and its factors [.., down, across], one for each box of rows and
    columns (None: all). Factors of pieces of rows are contiguous across the rows, as cuBLASLt
    reads them."""
    import torch

    rows, cols = x.shape[-2:]
    height, width = box[0] or rows, box[1] or cols
    x = x.float()
    padded = torch.nn.functional.pad(x.abs(), (0, -cols % width, 0, -rows % height))
    factors = padded.unflatten(-1, (-1, width)).unflatten(-3, (-1, height)).amax((-3, -1))
    factors = (factors / E4M3_MAX).clamp_(min=2.0**-100)
    x = (x / spread(factors, (rows, cols), (height, width))).clamp_(-E4M3_MAX, E4M3_MAX)
    return x.to(torch_dtype("e4m3")), factors.mT.contiguous().mT if height == 1 else factors


def spread(factors, shape, box):
    """The factor [.., rows, cols] of each element, of those of boxes."""
    for axis, length, size in ((-2, shape[0], box[0]), (-1, shape[1], box[1])):
        factors = factors.repeat_interleave(size, axis).narrow(axis, 0, length)
    return factors


def widened(x, factors):
    """The values of x in e4m3 times their factors, in bfloat16."""
    return (x.float() * factors).to(torch_dtype("bf16"))


def empty(shape, dtype, device):
    """An array of NaN, so that elements that a run does not write show."""
    if device == "cpu" and dtype in NUMPY_DTYPES:
        return np.full(shape, np.nan, NUMPY_DTYPES[dtype])
    import torch

    return torch.full(shape, float("nan"), dtype=torch_dtype(dtype), device=device)


def integers(values, device):
    return on_device(np.ascontiguousarray(values, dtype=np.int32), device)


def on_device(array, device):
    if device == "cpu":
        return array
    import torch

    return torch.from_numpy(array).to(device)


def to_torch(array):
    import torch

    return torch.from_numpy(array) if isinstance(array, np.ndarray) else array


def to_f64(array):
    """A copy on the host in double precision."""
    if isinstance(array, np.ndarray):
        return array.astype(np.float64)
    if hasattr(array, "detach"):
        return array.detach().double().cpu().numpy()
    return np.asarray(array).astype(np.float64)  # other arrays, by NumPy's protocol


def take(array, *index):
    """array[index] in double precision on the host. Each index is an int, a slice or a NumPy array
    of numbers; several arrays select a rectangle, not a diagonal."""
    for axis in reversed(range(len(index))):
        one = index[axis]
        if isinstance(one, np.ndarray) and hasattr(array, "index_select"):
            import torch

            places = torch.from_numpy(one).to(array.device)
            if isinstance(array, torch.Tensor):  # PyTorch does not select in FP8
                narrow = array.element_size() == 1
                words = array.view(torch.uint8) if narrow else array
                array = words.index_select(axis, places).view(array.dtype)
            else:
                array = array.index_select(axis, places)
        else:
            array = array[(slice(None),) * axis + (one,)]
    return to_f64(array)


def round_to(values, dtype):
    """float32 values, rounded to the nearest values of the dtype."""
    values = np.asarray(values, dtype=np.float32)
    if dtype == "f32":
        return values
    if dtype == "f16":
        return values.astype(np.float16).astype(np.float32)
    if dtype == "e4m3":
        exponent = np.maximum(np.frexp(values)[1], E4M3_LOWEST_EXPONENT)
        step = np.ldexp(np.float32(1), exponent - PRECISION[dtype])
        return np.clip(np.rint(values / step) * step, -E4M3_MAX, E4M3_MAX)
    bits = values.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded & np.uint32(0xFFFF0000)).view(np.float32)


def ulp(values, dtype):
    """The distance between adjacent values of the dtype, around each value."""
    _, exponent = np.frexp(np.abs(values))
    return np.ldexp(1.0, exponent - PRECISION[dtype])
