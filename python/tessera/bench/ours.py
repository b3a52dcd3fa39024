"""tessera as a competitor: the package's functions on the same inputs as the peers."""

import json
import time
from collections.abc import Iterator

from . import arrays
from .cases import LISTS
from .machine_code import code_of_call, installed
from .patterns import import_tessera
from .peers.base import Unavailable, one_line
from .timing import Prepared


def prepare_ours(problem, kernel=None, expand=False):
    """Raises Unavailable with the library's reasons if no kernel, or not the requested one,
    supports the case. `expand`: a plan may make a dense copy of the sparse operand, before the
    timing; what it then computes with is in `extra`."""
    tessera = import_tessera()
    extra = {"row": None, "predicted_ms": None, "machine_code": None}
    limit = dense_bytes(problem) if expand else 0
    try:
        plan = explanation(problem, kernel, expand_bytes=limit)["plan"] if limit else None
        if plan and plan["expanded_bytes"]:
            extra["expanded_bytes"] = plan["expanded_bytes"]
            runs = [_planned(tessera, problem, one, kernel, limit) for one in problem.sets]
        else:
            runs = [_closure(tessera, problem, one, extra, kernel) for one in problem.sets]
        runs[0]()
    except NotImplementedError as error:
        raise Unavailable(refusal(error, problem.device)) from error
    if problem.op not in LISTS:  # operations that make lists choose no kernel row
        plan = plan or explanation(problem, kernel)["plan"]
        extra.update(row=plan["kernel_name"], predicted_ms=plan["predicted_ms"])
    if problem.device == "cuda":
        extra["machine_code"] = code_of_call(installed(), problem.op, extra["row"],
                                             problem.dtype)
    return Prepared(lambda i: runs[i](), extra=extra)


def rejected(text: object, device: str) -> Iterator[tuple[str, str]]:
    """(row, reason) of each line of the library's message that rejects a kernel of this device."""
    for line in str(text).splitlines():
        word, _, rest = line.partition(" ")
        row, _, reason = rest.strip().partition(" ")
        if word == "rejected" and row.startswith("cpu") == (device == "cpu"):
            yield row, reason.strip()


def refusal(error, device):
    """Why no kernel supports the case: each reason once, without kernels of another device."""
    reasons = {}
    for row, reason in rejected(error, device):
        reasons.setdefault(reason, []).append(row)
    return one_line("no kernel: " + "; ".join(
        f"{', '.join(rows)}: {reason}" for reason, rows in reasons.items()) if reasons else error)


def _closure(tessera, problem, inputs, extra, kernel):
    if problem.op == "spgemm" and problem.device != "cpu":
        return _numeric(tessera, problem, inputs, extra, kernel)
    if problem.op in LISTS:
        return _listing(tessera, problem, inputs)
    if problem.op == "attention_backward":
        return _gradients(tessera, problem, inputs, kernel)
    function, arguments, options = _call(tessera, problem, inputs)
    if kernel:
        options["kernel"] = kernel
    if problem.op == "spgemm":
        return lambda: SparseResult(function(*arguments, **options))
    if problem.op == "sddmm":
        return lambda: function(*arguments, **options).values
    return lambda: function(*arguments, **options)


def dense_bytes(problem):
    """Of the sparse operands of a product as dense matrices."""
    return sum(bsr.rows * bsr.cols for bsr in (problem.bsr_a, problem.bsr_b) if bsr) * (
        arrays.BYTES[problem.dtype])


def _planned(tessera, problem, inputs, kernel, limit):
    function, arguments, options = _call(tessera, problem, inputs)
    plan = tessera.plan(function, *arguments, expand_bytes=limit, kernel=kernel, **options)
    plan.prepare()
    return lambda: plan.run(*arguments, out=options["out"])


def _listing(tessera, problem, inputs):
    """Makes lists with the capacity of the longest row, so that no size is read back."""
    room = problem.longest_row
    (given,) = inputs.values()
    operations = tessera.dispatch.operations(problem.op, given)
    if problem.op == "list_blocks":
        return lambda: operations.list_blocks(given, room)
    return lambda: operations.top_k_blocks(given, room, room)


def _numeric(tessera, problem, inputs, extra, kernel):
    """The numeric step of a sparse x sparse product, as in models that run it often. The time of
    the symbolic step is recorded separately."""
    _, (a, b), _ = _call(tessera, problem, inputs)
    start = time.perf_counter()
    made, numeric = tessera.products.spgemm_symbolic(a, b, kernel=kernel,
                                                     backend=problem.backend)
    extra["symbolic_ms"] = (time.perf_counter() - start) * 1e3  # of the last set
    made.values[...] = float("nan")
    result = SparseResult(made)

    def run():
        numeric()
        return result

    return run


def forward_results(problem, inputs):
    """out and lse of attention on these inputs, which its gradients are computed from."""
    tessera = import_tessera()
    options = {**attention_options(tessera, problem, inputs), "out": None}
    return tessera.attention(*(inputs[name] for name in "qkv"), return_lse=True, **options)


def gradient_arguments(tessera, problem, inputs, kernel=None):
    """What the export of attention's gradients is called with."""
    options = attention_options(tessera, problem, inputs)
    options["deterministic"] = not problem.params.get("any_order", False)
    mask = options.pop("mask", None)
    lists = {name: getattr(mask, name) for name in tessera._signatures.MASK.fields} if mask else {}
    signature = tessera._signatures.ATTENTION_BACKWARD
    call = signature.Inputs(**{**options, **lists, "kernel_name": kernel,
                               "backend": problem.backend, **{
        name: inputs[name] for name in ("dout", "q", "k", "v", "out", "lse")}})
    operations = tessera.dispatch.operations("attention_backward", inputs["q"])
    return operations.export_arguments(signature, call, *(inputs[n] for n in ("dq", "dk", "dv")),
                                       None)


def _gradients(tessera, problem, inputs, kernel):
    arguments = gradient_arguments(tessera, problem, inputs, kernel)
    results = tuple(inputs[name] for name in ("dq", "dk", "dv"))

    def run():
        tessera._ffi.attention_backward(*arguments)
        return results

    return run


def _call(tessera, problem, inputs):
    """The function, its positional arguments and its keyword arguments."""
    function, arguments, options = _plain_call(tessera, problem, inputs)
    return function, arguments, {**options, **({"backend": problem.backend} if problem.backend
                                               else {})}


def _plain_call(tessera, problem, inputs):
    p, op = problem.params, problem.op
    if op == "attention":
        return tessera.attention, [inputs[n] for n in "qkv"], attention_options(tessera, problem,
                                                                                inputs)
    def operand(bsr, values):
        return values if bsr is None else bsr.operand(tessera, values)

    a, b = operand(problem.bsr_a, inputs["a"]), operand(problem.bsr_b, inputs["b"])
    if op == "spgemm":
        return tessera.spgemm, [a, b], {}
    if op == "sddmm":
        pattern = operand(problem.bsr_out, inputs["out"])
        return tessera.sddmm, [a, b, pattern], {"out": inputs["out"]}
    options = {"out": inputs["out"]}
    for name, bsr in (("a_scale", problem.bsr_a), ("b_scale", problem.bsr_b)):
        if name in inputs:
            factors = inputs[name]
            several = bsr is not None and len(factors) > 1
            options[name] = factors.reshape(*bsr.batch, -1) if several else factors
    if "experts" in p:
        options["group_offsets"] = problem.offsets_array
    if op == "bsr_matmul":
        return tessera.bsr_matmul, [a, b], {**options, "transpose_b": p["side"] == "b"}
    transposed_a, transposed_b = (letter == "t" for letter in p["transpose"])
    return tessera.matmul, [a, b], {**options, "transpose_a": transposed_a,
                                    "transpose_b": transposed_b}


def attention_options(tessera, problem, inputs):
    p = problem.params
    options = {"causal": p["causal"], "out": inputs["out"]}
    options.update((name, one) for name, one in inputs.items() if name.endswith("_scale"))
    if "window" in p:
        options["window_left"] = p["window"]
    if "softcap" in p:
        options["softcap"] = float(p["softcap"])
    if "sequences" in p:
        options["q_offsets"] = options["kv_offsets"] = problem.offsets_array
        options["max_q_length"] = options["max_kv_length"] = int(problem.lengths.max())
    if problem.pages:
        options.update(page_table=problem.pages.table, kv_end=problem.pages.ends,
                       max_kv_length=p["skv"])
    if problem.lists is not None:
        counts, indices = problem.stacked_lists
        options["mask"] = tessera.BlockMask(p["s"], p["skv"], p["block_q"], p["block_kv"], counts,
                                            indices)
    return options


class SparseResult:
    """A BSR result with access by rows."""

    def __init__(self, matrix):
        self.matrix = matrix

    def dense_rows(self, rows):
        from . import arrays, patterns
        from .problem import Bsr

        offsets, indices = (arrays.to_f64(x).astype(int) for x in
                            (self.matrix.row_offsets, self.matrix.col_indices))
        r, c = self.matrix.block
        lists = patterns.Lists(len(offsets) - 1, self.matrix.cols // c, offsets, indices)
        return Bsr(lists, r, c, "cpu").dense_rows(self.matrix.values, rows)


def accepted_rows(problem):
    """The kernel rows that support a problem."""
    return [one["kernel"] for one in explanation(problem)["candidates"] if one["accepted"]]


def explanation(problem, kernel=None, device=None, expand_bytes=0):
    """The library's explanation: the chosen kernel and the candidates, with predicted times."""
    tessera = import_tessera()
    if problem.op == "attention_backward":
        arguments = gradient_arguments(tessera, problem, problem.sets[0], kernel)
        return json.loads(tessera._ffi.explain(problem.op, device, True, 0, *arguments))
    function, arguments, options = _call(tessera, problem, problem.sets[0])
    return tessera.explain(function, *arguments, device=device, kernel=kernel,
                           expand_bytes=expand_bytes, **options)
