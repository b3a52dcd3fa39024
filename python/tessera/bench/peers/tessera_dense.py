"""tessera's own attention without the case's lists, window, softcap, packing and grouped heads: the
rate that those are held against, in turns with it."""

from ..ours import prepare_ours, version
from .base import Peer


class TesseraDense(Peer):
    ops = ("attention",)

    def version(self):
        return version()

    def applies(self, case):
        return super().applies(case) and case.dense().key != case.key

    def prepare(self, problem):
        whole = problem.dense()
        return prepare_ours(whole).solving(whole)


PEERS = {"tessera_dense": TesseraDense("tessera_dense")}
