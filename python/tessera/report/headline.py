"""The README's five lines: one case of each kind, of the card that has most of them."""

from ..bench.cases import case_key, make_case
from .reading import cards
from .table import Table
from .values import OURS, best_peer, measured, of_dense, times_as_quick

PEERS = {"fa4": "FlashAttention-4", "fa3": "FlashAttention-3", "flashinfer": "FlashInfer",
         "sdpa_cudnn": "cuDNN", "sdpa_flash": "PyTorch SDPA", "flex": "FlexAttention",
         "cublaslt": "cuBLASLt", "torch_bsr": "PyTorch BSR", "cusparse_bell": "cuSPARSE"}
LONG = {"s": 32768, "density": 0.125, "pattern": "random"}
# What a line says -> the case, which bench/workloads/hopper_*.json measures.
CASES = {
    "attention, 16 heads of 128, 16384 tokens": ("attention", {"s": 16384}),
    "the same, causal": ("attention", {"s": 16384, "causal": True}),
    "32768 tokens, one block of 128 x 128 in 8": ("attention", {**LONG, "block_q": 128}),
    "the same in blocks of 64 x 64 (lists of 64 rows)": ("attention", {**LONG, "block_q": 64}),
    "linear, 4096 to 14336 features, 4096 tokens, one block of 64 x 64 in 5":
        ("bsr_matmul", {"side": "b", "m": 4096, "n": 14336, "k": 4096, "block": 64,
                        "density": 0.2, "pattern": "random"}),
}


def lines_of(results):
    """[(text, record, its result)] of the sustained cases that have a figure of ours."""
    found = []
    for text, (op, params) in CASES.items():
        key = case_key(op, make_case(op, params).params)
        found += [(text, record, result) for result in results for record in result["cases"]
                  if record["state"] == "sustained" and "ms" in record["ours"]
                  and case_key(record["op"], record["params"]) == key][:1]
    return found


def best_card(results):
    """The results of the card that has most of the lines; of equal ones that measured last."""
    groups = [[*card.results.values()] for card in cards(dict(enumerate(results)))]
    return max(groups, default=[], key=lambda group: (
        len(lines_of(group)), max(result["date"] for result in group)))


def table(lines):
    rows = []
    for text, record, result in lines:
        best = best_peer(record)
        peer = f"{PEERS.get(best, best)} {measured(record)[best]['ms']:.3g}" if best else ""
        ratio = times_as_quick(record)
        dense = next((entry for name, entry in measured(record).items()
                      if name in ("tessera_dense", "cublaslt_dense")), None)
        over = dense["ms"] / record["ours"]["ms"] if dense and of_dense(record) else None
        rows.append([text, record["ours"]["ms"], peer, f"{ratio:.2f}x" if ratio else "",
                     f"{over:.1f}x" if over else "", result["date"][:10]])
    return Table(["bf16, at the power limit", f"{OURS}, ms", "best peer, ms", "over the peer",
                  "over dense", "measured"], rows)
