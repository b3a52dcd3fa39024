"""tessera's attention or product in bf16 over the values of a case in FP8: the speed and the
accuracy that FP8 is held against."""

from ..ours import prepare_ours
from .base import Peer


class TesseraBf16(Peer):
    ops = ("attention", "matmul", "bsr_matmul")
    experts = (False, True)
    fp8 = True
    module = "tessera"

    def applies(self, case):
        return super().applies(case) and case.fp8

    def prepare(self, problem):
        return prepare_ours(problem.in_bf16())
