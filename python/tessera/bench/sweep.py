"""Ours beside its alternatives over shapes drawn at random, and how the ratios are distributed.

A ratio is the time of the best alternative over ours: above 1 we are faster. Where ours has no
kernel it is 0. Linear layers may use a dense copy of the weight, as inference does: there ours is
measured without it as well."""

from dataclasses import replace

from ..report.table import Table
from . import shapes
from .cases import label
from .ratios import (
    PERCENT,
    STATES,
    best_alternative,
    measured_ratio,
    percentile,
    ratio,
    regret,
    summary_of,
    worst_first,
)
from .results import record_key
from .suite import DONE, FAILED, Suite

# The alternatives: PyTorch's dense product for dense products and for linear layers (cuBLASLt by
# its own heuristics, as every caller gets it), and other libraries' sparse products. The peers
# `cublaslt` and `cublaslt_dense` measure eight of cuBLASLt's algorithms first and take the best.
ALTERNATIVES = {"attention": ("fa3", "fa4", "sdpa_cudnn", "flashinfer", "torch"),
                "attention_fp8": ("fa3",),
                "attention_backward": ("fa3", "fa4", "fa4_deterministic", "sdpa_cudnn", "torch"),
                "matmul": ("torch_dense", "torch"),
                "linear": ("torch_dense", "torch"),
                "bsr_matmul": ("torch_bsr", "cusparse_bell", "torch")}
AGAIN, REPEATS = 10, 3  # so many of the worst are measured so many times more
SHOWN = 20


def summaries(op, seed, records):
    """An entry of a result's `sweeps` for each state that was measured."""
    made = []
    for state, word in STATES.items():
        found = summary_of(records, state)
        if found is None:
            continue
        entry = {"op": op, "state": word, "seed": seed, **found}
        regrets = sorted(filter(None, (regret(one) for one in records if one["state"] == state)))
        if regrets:
            entry["regret"] = {name: percentile(regrets, share) for name, share in
                               (("median", 50), ("p95", 95), ("worst", 100))}
        made.append(entry)
    return made


class Sweep(Suite):
    """A suite over drawn shapes, whose worst ones are measured again."""

    def __init__(self, op, seed, count, shard, path, settings, backend=None, **options):
        super().__init__(path, replace(settings, quick=True, expand=op == "linear"),
                         ceilings=False, **options)
        self.op, self.seed = op, seed
        self.cases = [case.on(backend) for case in shapes.draw(op, seed, count)]
        self.shard = self.cases[shard[0]::shard[1]]

    def sweep(self):
        outcome = self.run(self.shard)
        if outcome in (DONE, FAILED):
            # The states are those of a case then. Preparing takes longer than timing.
            self.settings = replace(self.settings, rows=False, states=None, times=REPEATS)
            again = self.each(self._worst(), self._measure_again)
            outcome = outcome if again == DONE else again
        self.result["sweeps"] = [
            one for one in self.result.get("sweeps", ())
            if (one["op"], one["seed"]) != (self.op, self.seed)
        ] + summaries(self.op, self.seed, self.records())
        self.save()
        return outcome

    def records(self):
        keys = {case.key for case in self.cases}
        return [one for one in self.result["cases"] if record_key(one)[0] in keys]

    def _worst(self):
        """The worst cases of this shard that have one measurement, each in one state."""
        own = {case.key: case for case in self.shard}
        mine = [one for one in self.records() if record_key(one)[0] in own]
        return [replace(own[record_key(one)[0]], states=(state,)) for state in STATES
                for one in worst_first(mine, state)[:AGAIN]
                if "ratios" not in one and "ms" in one["ours"]]

    def _measure_again(self, case, progress):
        (record,) = (one for one in self.records() if record_key(one) == (case.key, case.states[0]))
        ratios = [measured_ratio(record)]
        made = self.records_of(case, progress)
        if made is None:
            return False
        ratios += [one for one in map(measured_ratio, made) if one is not None]
        record["ratios"] = ratios
        self.save()
        return True


def report(result, op, seed, records):
    """Tables: the distribution, and the worst shapes with what ran there."""
    entries = [one for one in result["sweeps"] if (one["op"], one["seed"]) == (op, seed)]
    rows = [[one["state"], str(one["count"]), *(f"{one['ratio'][name]:.2f}" for name in PERCENT),
             f"{sum(ratio(r) < .95 for r in worst_first(records, state))}"]
            for one in entries for state, word in STATES.items() if word == one["state"]]
    tables = [Table([f"{op}, seed {seed}", "shapes", *PERCENT, "below .95"], rows, 1)]
    for one in entries:
        if "unexpanded_median" in one:
            tables.append(Table(["without dense copies", "median"],
                                [[one["state"], f"{one['unexpanded_median']:.2f}"]], 1))
    for one in entries:
        if "regret" in one:
            row = [f"{one['regret'][name]:.3f}" for name in ("median", "p95", "worst")]
            tables.append(Table(["regret", "median", "p95", "worst"], [[one["state"], *row]], 1))
    for state, word in STATES.items():
        rows = [[f"{ratio(one):.2f}", _milliseconds(one["ours"]), _best_peer(one),
                 one["ours"].get("row") or one["ours"].get("unavailable", ""),
                 f"{one['ours'].get('predicted_ms') or 0:.4f}", label(one["op"], one["params"])]
                for one in worst_first(records, state)[:SHOWN]]
        if rows:
            tables.append(Table([word, "ours at first, ms", "alternative, ms", "kernel row",
                                 "predicted, ms", "shape"], rows, 0))
    return tables


def _milliseconds(entry):
    return f"{entry['ms']:.4f}" if "ms" in entry else "none"


def _best_peer(record):
    name, entry = best_alternative(record)
    return f"{name} {entry['ms']:.4f}"
