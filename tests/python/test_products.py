import itertools

import numpy as np
import pytest
import support

import tessera
from tessera import BsrMatrix

TOLERANCE = dict(atol=5e-5, rtol=2e-5)
BLOCKS = [(16, 16), (8, 32), (32, 8)]


def close(got, want):
    np.testing.assert_allclose(np.asarray(got, np.float64), want, **TOLERANCE)


def wide(x):
    return np.asarray(x, np.float64)


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("kinds", ["dense dense", "sparse dense", "dense sparse", "sparse sparse"])
def test_matmul(kinds, transpose_a, transpose_b):
    a = support.sparse(64, 96, (16, 16), seed=1)
    b = support.sparse(96, 128, (16, 16), seed=2)
    stored = [a.T.copy() if transpose_a else a, b.T.copy() if transpose_b else b]
    operands = [BsrMatrix.from_dense(x, 16) if kind == "sparse" else x
                for x, kind in zip(stored, kinds.split(), strict=True)]
    out = tessera.matmul(*operands, transpose_a=transpose_a, transpose_b=transpose_b)
    assert out.dtype == np.float32
    close(out, wide(a) @ wide(b))


def test_epilogue():
    a, b, c = (support.random(24, 24, seed=s) for s in range(3))
    bias = support.random(24, seed=3)
    got = tessera.matmul(a, b, alpha=0.5, beta=2.0, c=c, bias=bias, bias_axis="row",
                         activation="relu")
    close(got, np.maximum(0.5 * (wide(a) @ b) + 2.0 * c + bias[:, None], 0))
    out = c.copy()
    assert tessera.matmul(a, b, beta=-1.0, out=out) is out
    close(out, wide(a) @ b - c)


def test_batches_and_dtypes():
    a, b = support.random(3, 8, 16), support.random(16, 24, seed=1)
    close(tessera.matmul(a, b), wide(a) @ b)
    half = tessera.matmul(a.astype(np.float16), b.astype(np.float16), out_dtype=np.float32)
    assert half.dtype == np.float32
    close(half, wide(a.astype(np.float16)) @ wide(b.astype(np.float16)))


def test_groups():
    offsets = np.array([0, 5, 5, 20], np.int32)
    a, b = support.random(20, 16), support.random(3, 16, 8, seed=1)
    cuts = list(itertools.pairwise(offsets))
    want = np.concatenate([wide(a[s:e]) @ b[g] for g, (s, e) in enumerate(cuts)])
    close(tessera.matmul(a, b, group_offsets=offsets), want)
    d = support.random(20, 8, seed=2)
    inner = tessera.matmul(a.T, d, group_offsets=offsets, group_axis="inner")
    close(inner, np.stack([wide(a[s:e]).T @ d[s:e] for s, e in cuts]))


@pytest.mark.parametrize("sparse_weight", [False, True])
def test_linear(sparse_weight):
    x, weight = support.random(2, 5, 32), support.sparse(64, 32, (16, 16), seed=1)
    bias = support.random(64, seed=2)
    given = BsrMatrix.from_dense(weight, 16) if sparse_weight else weight
    close(tessera.linear(x, given, bias), wide(x) @ weight.T + bias)
    close(tessera.linear(x[0, 0], given), wide(x[0, 0]) @ weight.T)
    assert tessera.linear(x[:, :0], given).shape == (2, 0, 64)


@pytest.mark.parametrize("block", BLOCKS)
def test_sddmm(block):
    a, b = support.random(64, 24), support.random(24, 96, seed=1)
    pattern = BsrMatrix.from_dense(support.sparse(64, 96, block, seed=2), block)
    stored = pattern.to_dense() != 0
    got = tessera.sddmm(a, b, pattern, alpha=2.0)
    close(got.to_dense(), 2 * (wide(a) @ b) * stored)
    mixed = tessera.sddmm(a, b, pattern, beta=3.0)
    close(mixed.to_dense(), (wide(a) @ b) * stored + 3 * wide(pattern.to_dense()))
    batch = tessera.sddmm(np.stack([a, -a]), b, pattern)
    close(batch.values[1], -got.values / 2)
    values = np.empty_like(pattern.values)
    assert tessera.sddmm(a, b, pattern, out=values).values is values


def test_spgemm():
    a, b = support.sparse(64, 96, (16, 8), seed=1), support.sparse(96, 80, (8, 20), seed=2)
    got = tessera.spgemm(BsrMatrix.from_dense(a, (16, 8)), BsrMatrix.from_dense(b, (8, 20)),
                         alpha=0.5)
    assert got.block == (16, 20)
    close(got.to_dense(), 0.5 * (wide(a) @ b))
    turned = tessera.spgemm(BsrMatrix.from_dense(b, (8, 20)).T, BsrMatrix.from_dense(a, (16, 8)).T)
    close(turned.to_dense(), wide(b).T @ a.T)


# ---- BsrMatrix ---------------------------------------------------------------------------------


@pytest.mark.parametrize("block", BLOCKS)
def test_round_trips(block):
    scipy_sparse = pytest.importorskip("scipy.sparse")
    dense = support.sparse(64, 96, block)
    matrix = BsrMatrix.from_dense(dense, block)
    np.testing.assert_array_equal(matrix.to_dense(), dense)
    np.testing.assert_array_equal(matrix.T.to_dense(), dense.T)
    np.testing.assert_array_equal(matrix.transpose().to_dense(), dense.T)
    assert matrix.T.shape == (96, 64) and matrix.transpose().block == block[::-1]
    theirs = matrix.to_scipy()
    np.testing.assert_array_equal(theirs.toarray(), dense)
    np.testing.assert_array_equal(matrix.T.to_scipy().toarray(), dense.T)
    np.testing.assert_array_equal(BsrMatrix.from_scipy(theirs).to_dense(), dense)
    loose = scipy_sparse.csr_array(dense)
    np.testing.assert_array_equal(BsrMatrix.from_scipy(loose, block).to_dense(), dense)


def test_unsorted_scipy_matrix():
    scipy_sparse = pytest.importorskip("scipy.sparse")
    blocks = support.random(3, 4, 4)
    theirs = scipy_sparse.bsr_matrix((blocks, [2, 0, 0], [0, 3]), shape=(4, 12))
    matrix = BsrMatrix.from_scipy(theirs)
    np.testing.assert_allclose(matrix.to_dense(), theirs.toarray(), rtol=1e-6)
    x = support.random(12, 5)
    close(tessera.matmul(matrix, x), wide(theirs.toarray()) @ x)


def test_prune_keeps_the_largest_and_the_first_of_equals():
    dense = np.kron(np.array([[1, 3], [3, 2]]), np.ones((4, 4))).astype(np.float32)
    keep = BsrMatrix.prune(dense, 4, density=0.5).to_dense()[::4, ::4]
    np.testing.assert_array_equal(keep, [[0, 3], [3, 0]])
    assert BsrMatrix.prune(np.ones((8, 8), np.float32), 4, density=0.25).to_dense()[0, 0] == 1
    assert BsrMatrix.prune(dense, 4, density=0.0).stored_blocks == 0


def test_operators():
    dense = support.sparse(32, 32, (16, 16))
    matrix, x = BsrMatrix.from_dense(dense, 16), support.random(32, 8)
    close(matrix @ x, wide(dense) @ x)
    close(x.T @ matrix, wide(x).T @ dense)
    close((matrix @ matrix.T).to_dense(), wide(dense) @ dense.T)


def test_empty_matrix():
    matrix = BsrMatrix.from_dense(np.zeros((32, 48), np.float32), 16)
    assert matrix.stored_blocks == 0 and matrix.density == 0
    assert (tessera.matmul(matrix, support.random(48, 4)) == 0).all()


# ---- Bad input ---------------------------------------------------------------------------------


def test_refusals():
    a, b = support.random(8, 16), support.random(16, 8)
    matrix = BsrMatrix.from_dense(support.sparse(32, 32, (16, 16)), 16)
    with pytest.raises(ValueError, match="matmul: b: expected 16 rows"):
        tessera.matmul(a, a)
    with pytest.raises(TypeError, match=r"matmul: a: .*got float64"):
        tessera.matmul(a.astype(np.float64), b)
    with pytest.raises(ValueError, match="activation: expected one of none, relu"):
        tessera.matmul(a, b, activation="tanh")
    with pytest.raises(ValueError, match="bias_axis: expected 'column' or 'row'"):
        tessera.matmul(a, b, bias_axis="col")
    with pytest.raises(ValueError, match="beta: needs c, or out"):
        tessera.matmul(a, b, beta=1.0)
    with pytest.raises(TypeError, match="expected a BsrMatrix as a or b"):
        tessera.bsr_matmul(a, b)
    with pytest.raises(TypeError, match="spgemm: b: expected a BsrMatrix"):
        tessera.spgemm(matrix, a)
    with pytest.raises(TypeError, match="sddmm: pattern"):
        tessera.sddmm(a, b, matrix.T)
    with pytest.raises(ValueError, match="whole blocks of 16 x 16"):
        BsrMatrix.from_dense(a, 16)
    with pytest.raises(ValueError, match="density: expected 0 to 1"):
        BsrMatrix.prune(a, 8, 1.5)


LINEAR = {
    "x": ("x: expected float32.*got float64", dict(x=np.zeros((2, 64)))),
    "x list": ("x: expected a NumPy array", dict(x=[1.0])),
    "weight": (r"weight: expected 64 columns to match those of x, got \[32, 32\]",
               dict(weight=np.zeros((32, 32), np.float32))),
    "weight dtype": ("weight: expected dtype f32 as x has, got f16",
                     dict(weight=np.zeros((32, 64), np.float16))),
    "weight str": ("weight: expected a NumPy array.*got str", dict(weight="text")),
    "bias": (r"bias: expected shape \[N = 32\], got f32\[3\]", dict(bias=np.zeros(3, np.float32))),
    "bias list": ("bias: expected a tensor or None, got list", dict(bias=[1.0])),
    "masked": ("bias: expected .*got a masked array",
               dict(bias=np.ma.masked_array(np.zeros(32, np.float32)))),
    "activation": ("activation: expected one of none", dict(activation="tanh")),
}


def test_linear_with_any_leading_dimensions():
    weight, x = support.random(5, 4), support.random(2, 1, 3, 2, 1, 2, 4, seed=1)
    want = x.astype(np.float64) @ weight.T
    for y in (x, x[0], x[0, 0, 0, 0, 0, 0], x[:, :, ::2], x.swapaxes(0, 2), x[:, :0]):
        got = tessera.linear(y, weight)
        assert got.shape == (*y.shape[:-1], 5)
        np.testing.assert_allclose(got, y.astype(np.float64) @ weight.T, rtol=1e-5, atol=1e-5)
    matrix = tessera.BsrMatrix.from_dense(weight, (5, 2))
    np.testing.assert_allclose(tessera.linear(x, matrix), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", LINEAR)
def test_errors_of_linear_name_its_own_arguments(case):
    message, change = LINEAR[case]
    given = dict(x=np.zeros((2, 64), np.float32), weight=np.zeros((32, 64), np.float32))
    with pytest.raises((TypeError, ValueError), match=f"^linear: {message}"):
        tessera.linear(**{**given, **change})


def test_linear_names_the_arrays_of_a_sparse_weight():
    m = BsrMatrix.from_dense(np.eye(64, dtype=np.float32), 16)
    broken = BsrMatrix(m.values[:2], m.row_offsets, m.col_indices, 64, 64)
    x = np.zeros((2, 64), np.float32)
    with pytest.raises(ValueError, match=r"^linear: weight\.col_indices: "):
        tessera.linear(x, broken)
    with pytest.raises(ValueError, match=r"^matmul: a\.col_indices: "):
        tessera.matmul(broken, x.T)


@pytest.mark.parametrize("name,change,message", [
    ("a", lambda x: x.astype(np.float64), "float8_e4m3fn or float8_e5m2, got float64"),
    ("b", lambda x: x.astype(np.complex128), "got complex128; convert it first"),
    ("b", lambda x: x.astype(object), "convert it first"),
    ("b", lambda x: x.astype(">f4"), "convert it first"),
    ("b", lambda x: [1.0], "expected a NumPy array or a PyTorch tensor, got list"),
    ("c", np.ma.masked_array, "got a masked array"),
    ("b", np.ma.masked_array, "got a masked array"),
    ("a", np.ma.masked_array, "got a masked array"),
])
def test_operands_are_refused_by_name(name, change, message):
    given = dict(a=np.zeros((4, 4), np.float32), b=np.zeros((4, 4), np.float32),
                 c=np.zeros((4, 4), np.float32))
    given[name] = change(given[name])
    with pytest.raises(TypeError, match=f"^matmul: {name}: .*{message}"):
        tessera.matmul(**given, beta=1.0)


def test_matrices_refuse_masked_arrays():
    ones = np.ma.masked_array(np.ones((16, 16), np.float32))
    place = np.arange(16)
    with pytest.raises(TypeError, match=r"from_dense: dense: .*got a masked array"):
        BsrMatrix.from_dense(ones, 8)
    with pytest.raises(TypeError, match=r"from_coo: value: .*got a masked array"):
        BsrMatrix.from_coo(place, place, ones[0], (16, 16), 8)
    held = BsrMatrix.from_dense(ones.data, 8)
    with pytest.raises(TypeError, match=r"matmul: b: .*got a masked array"):
        tessera.matmul(ones.data, held.with_values(np.ma.masked_array(held.values)))


def test_keep_is_boolean_or_integer():
    dense = np.ones((16, 16), np.float32)
    with pytest.raises(TypeError, match=r"from_dense: keep: .*got a masked array"):
        BsrMatrix.from_dense(dense, 8, keep=np.ma.masked_array(np.ones((2, 2), bool)))
    with pytest.raises(TypeError, match=r"from_dense: keep: expected a NumPy array.*got list"):
        BsrMatrix.from_dense(dense, 8, keep=[[True, False], [False, True]])
    with pytest.raises(ValueError, match=r"from_dense: keep: expected booleans or integers, got "
                                         r"float64 \[2, 2\]; scores > threshold"):
        BsrMatrix.from_dense(dense, 8, keep=np.array([[0.1, 0.9], [0.2, 0.3]]))
    for dtype in (bool, np.int32):
        assert BsrMatrix.from_dense(dense, 8, keep=np.eye(2, dtype=dtype)).stored_blocks == 2


def test_prune_refuses_nan():
    dense = support.random(32, 48)
    dense[8, 0] = -np.inf
    assert BsrMatrix.prune(dense, 8, density=1 / 24).to_dense()[8, 0] == -np.inf
    dense[17, 40] = np.nan
    for density in (0.0, 0.5, 1.0):
        with pytest.raises(ValueError, match=r"^prune: dense: expected no NaN, .* block \(2, 5\)"):
            BsrMatrix.prune(dense, 8, density)
    assert BsrMatrix.from_dense(dense, 8).stored_blocks == 24


def test_prune_refuses_nan_in_tensors():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    weight = torch.ones(32, 48, dtype=torch.bfloat16)
    weight[17, 40] = torch.nan
    with pytest.raises(ValueError, match=r"^prune: dense: expected no NaN, .* block \(2, 5\)"):
        BsrMatrix.prune(weight, 8, 0.5)


def test_names_of_files_are_left_alone(tmp_path):
    with pytest.raises(OSError, match=r"epilogue\.sparse\.mtx"):
        tessera.read_matrix_market(tmp_path / "epilogue.sparse.mtx")


def test_lists_are_checked():
    matrix = BsrMatrix.from_dense(support.sparse(32, 32, (16, 16), density=1.0), 16)
    columns = matrix.col_indices.copy()
    columns[0] = 9
    broken = BsrMatrix(matrix.values, matrix.row_offsets, columns, 32, 32)
    with pytest.raises(ValueError, match="col_indices"):
        tessera.matmul(broken, support.random(32, 4))


def test_from_coo_adds_up_and_pads():
    rng = np.random.default_rng(0)
    row, col = rng.integers(0, 50, 200), rng.integers(0, 70, 200)
    value = rng.standard_normal(200).astype(np.float32)
    want = np.zeros((56, 72))
    np.add.at(want, (row, col), value)
    matrix = BsrMatrix.from_coo(row, col, value, (56, 72), (8, 24))
    assert matrix.dtype == np.float32 and matrix.block == (8, 24)
    close(matrix.to_dense(), want)
    close(tessera.bsr_matmul(matrix, np.eye(72, dtype=np.float32)), want)  # lists are sorted
    none = np.zeros(0, np.int64)
    empty = BsrMatrix.from_coo(none, none, np.zeros(0, np.float16), (16, 0), 8)
    assert empty.shape == (16, 0) and empty.stored_blocks == 0 and empty.dtype == np.float16


def test_from_coo_refuses():
    i, v = np.arange(4), np.ones(4, np.float32)
    for arguments, message in (
            ((i, i, v, (10, 8), 4), r"shape: expected whole blocks of 4 x 4, got 10 x 8"),
            ((i, i[:3], v, (8, 8), 4), r"one of each an element, got \[4\], \[3\], \[4\]"),
            ((i + 5, i, v, (8, 8), 4), r"row: expected 0 to 7, got 5 to 8"),
            ((i, i - 1, v, (8, 8), 4), r"col: expected 0 to 7, got -1 to 2")):
        with pytest.raises(ValueError, match=message):
            BsrMatrix.from_coo(*arguments)
    with pytest.raises(TypeError, match="col: expected integers, got float32"):
        BsrMatrix.from_coo(i, v, v, (8, 8), 4)


@pytest.mark.parametrize("symmetry", ["general", "symmetric", "skew-symmetric"])
def test_read_matrix_market(tmp_path, symmetry):
    sparse = pytest.importorskip("scipy.sparse")
    dense = np.tril(support.random(12, 12), -1) * (support.random(12, 12, seed=1) > 0)
    path = tmp_path / "small.mtx"
    entries = [f"{r + 1} {c + 1} {dense[r, c]:.9g}" for r, c in np.argwhere(dense)]
    path.write_text(f"%%MatrixMarket matrix coordinate real {symmetry}\n% a comment\n"
                    f"12 12 {len(entries)}\n" + "\n".join(entries) + "\n")
    coo = tessera.read_matrix_market(path)
    assert coo.value.dtype == np.float32 and coo.shape == (12, 12)
    mirrored = {"general": 0, "symmetric": 1, "skew-symmetric": -1}[symmetry]
    want = dense + mirrored * dense.T
    close(BsrMatrix.from_coo(*coo, block=3).to_dense(), want)
    close(sparse.coo_matrix((coo.value, (coo.row, coo.col)), coo.shape).toarray(), want)


def test_invalid_matrix_market_files(tmp_path):
    path = tmp_path / "bad.mtx"
    path.write_text("%%MatrixMarket matrix coordinate real general\n2 2 1\n3 1 1.0\n")
    with pytest.raises(OSError, match=r"bad\.mtx:3: .*the row"):
        tessera.read_matrix_market(path)
    with pytest.raises(OSError, match=r"absent\.mtx"):
        tessera.read_matrix_market(tmp_path / "absent.mtx")


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize(("name", "operand"), [("matmul", "b"), ("linear", "weight")])
def test_errors_name_a_missing_operand(kind, name, operand):
    x = np.ones((8, 8), np.float32)
    if kind == "torch":
        x = pytest.importorskip("torch", reason="PyTorch is not installed").from_numpy(x)
    expected = f"{name}: {operand}: expected a NumPy array or a PyTorch tensor, got NoneType"
    with pytest.raises(TypeError, match=expected):
        getattr(tessera, name)(x, None)
