"""tessera's dense attention, without the case's lists, window, softcap, packing and grouped heads,
and its product of experts with dense matrices. Cases with these features are compared with it."""

from ..cases import ATTENTION_PASSES
from ..ours import prepare_ours
from .base import Peer


class TesseraDense(Peer):
    ops = (*ATTENTION_PASSES, "bsr_matmul")
    experts = (False, True)
    fp8 = True
    module = "tessera"

    def applies(self, case):
        # Products without experts are compared with cuBLASLt instead.
        wanted = case.op in ATTENTION_PASSES or "experts" in case.params
        return super().applies(case) and wanted and case.dense().key != case.key

    def prepare(self, problem):
        whole = problem.dense()
        return prepare_ours(whole).solving(whole)
