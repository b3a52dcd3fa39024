"""Concurrent calls from several threads: each thread has its own cache of plans."""

import threading

import numpy as np
import pytest
import support

import tessera
from tessera import BlockMask, BsrMatrix

THREADS, REPEATS = 6, 40


def at_once(work):
    """Runs work(i) on several threads that start together; raises an exception of one of them."""
    gate, failures = threading.Barrier(THREADS), []

    def run(i):
        try:
            gate.wait()
            work(i)
        except BaseException as failure:  # raised again in the test
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


@pytest.fixture(params=["numpy", "torch"])
def make(request):
    if request.param == "numpy":
        return lambda array: array
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    return lambda array: torch.from_numpy(np.array(array))


def calls(make):
    """Calls of several operations, with shapes that share places in the cache."""
    made = []
    for length in (5, 16, 33):
        q = make(support.random(1, length, 2, 16, seed=length))
        mask = BlockMask.from_blocks(make(np.ones((1, 1)) == 1), length, length, 64)
        made += [lambda q=q: tessera.attention(q, q, q, causal=True),
                 lambda q=q, mask=mask: tessera.attention(q, q, q, mask=mask, return_lse=True)[1]]
    for size in (16, 32, 48):
        x, weight = (make(support.random(size, size, seed=size + i)) for i in (0, 1))
        matrix = BsrMatrix.prune(weight, (8, 8), 0.5)
        made += [lambda x=x, weight=weight: tessera.matmul(x, weight),
                 lambda x=x, matrix=matrix: tessera.linear(x[None], matrix),
                 lambda x=x, weight=weight, matrix=matrix: tessera.sddmm(x, weight, matrix).values,
                 lambda matrix=matrix: tessera.spgemm(matrix, matrix).values]
    return made


def test_eager_calls(make):
    made = calls(make)
    want = [np.asarray(call()) for call in made]

    def work(i):
        order = np.random.default_rng(i).permutation(len(made))
        for at in np.tile(order, REPEATS // 10):
            np.testing.assert_array_equal(np.asarray(made[at]()), want[at])

    at_once(work)


def test_one_plan(make):
    inputs = [[make(support.random(1, 32, 2, 16, seed=10 * i + j)) for j in range(3)]
              for i in range(THREADS)]
    mask = BlockMask.from_blocks(make(np.eye(4) == 1), 32, 32, 8)
    want = [np.asarray(tessera.attention(*x, mask=mask)) for x in inputs]
    plan = tessera.plan("attention", *inputs[0], mask=mask)
    plan.prepare()

    def work(i):
        for _ in range(REPEATS):
            np.testing.assert_array_equal(np.asarray(plan.run(*inputs[i])), want[i])

    at_once(work)


def test_errors_stay_on_their_thread(make):
    q = make(support.random(1, 16, 2, 16))

    def work(i):
        for _ in range(REPEATS):
            if i % 2:
                tessera.attention(q, q, q)
            else:
                with pytest.raises(ValueError, match=r"softcap: .*got -1"):
                    tessera.attention(q, q, q, softcap=-1.0)

    at_once(work)
