"""tessera's own attention without the case's lists, window, softcap, packing and grouped heads, and
its own product of experts with whole matrices: the rate that those are held against, in turns with
it."""

from ..ours import prepare_ours
from .base import Peer


class TesseraDense(Peer):
    ops = ("attention", "bsr_matmul")
    experts = (False, True)
    module = "tessera"

    def applies(self, case):
        # One dense product has a better one to be held against: cuBLASLt's.
        wanted = case.op == "attention" or "experts" in case.params
        return super().applies(case) and wanted and case.dense().key != case.key

    def prepare(self, problem):
        whole = problem.dense()
        return prepare_ours(whole).solving(whole)
