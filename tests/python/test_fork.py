"""Processes forked from one that used the CPU backend. A child that hangs ends by its alarm."""

import os
import signal

import numpy as np
import pytest
import support

import tessera

SECONDS = 60


def product(threads=4):
    a, b = support.random(512, 300), support.random(300, 512, seed=1)
    q = support.random(1, 256, 4, 32, seed=2)
    return (tessera.matmul(a, b, threads=threads),
            tessera.attention(q, q, q, causal=True, threads=threads))


def exit_code_of_child(work):
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS)
        code = 1
        try:
            code = 0 if work() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_computes_the_same():
    want = product()
    same = exit_code_of_child(lambda: all(map(np.array_equal, product(), want)))
    assert same == 0


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_workers_of_a_data_loader():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")

    class Products(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return torch.from_numpy(product()[0]) + index

    want = torch.from_numpy(product()[0])
    loader = torch.utils.data.DataLoader(Products(), batch_size=2, num_workers=2,
                                         multiprocessing_context="fork", timeout=SECONDS)
    got = torch.cat(list(loader))
    for index in range(8):
        torch.testing.assert_close(got[index], want + index, rtol=0, atol=0)
