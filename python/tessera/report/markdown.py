"""The documentation's tables: what `case_tables` and others make, as lines of Markdown."""

from ..bench import results as result_files
from ..bench.machine_code import in_words
from . import case_tables, model_error, summary
from . import ceilings as ceiling
from .table import shown
from .values import number

LONGEST_REASON = 200


def plain(text):
    """Text that Markdown leaves as it is, in one line."""
    text = " ".join(text.split())
    text = text if len(text) <= LONGEST_REASON else text[: LONGEST_REASON - 3] + "..."
    for sign in "\\`*_|<[":
        text = text.replace(sign, "\\" + sign)
    return text


def lines(table):
    """Empty columns go; so does a table without rows."""
    if not table.rows:
        return []
    kept = table.kept()

    def line(cells):
        return "| " + " | ".join(shown(cells[i]) for i in kept) + " |"

    rule = "|" + "".join("---|" if i < table.left else "---:|" for i in kept)
    return [line(table.head), rule, *map(line, table.rows)]


def noted(notes):
    return [f"({place}) {', '.join(names)}: {plain(reason)}  "
            for place, names, reason in notes.numbered()]


def glance(records):
    """Wins and losses by group, and the worst of the losses."""
    groups, losses = summary.by_groups(records), summary.losses(records)
    if not groups.rows:
        return []
    lost = ["", f"{losses.caption}:", "", *lines(losses)] if losses.rows else []
    return [summary.sentence(records), "", f"{groups.caption}:", "", *lines(groups), *lost]


def comparison(records):
    """A table for each state, and the reasons of who is missing below them."""
    tables, notes = case_tables.comparison(records)
    out = []
    for table in tables:
        out += [f"{table.caption}.", "", *lines(table), ""]
    return out + noted(notes)


def lists(records):
    table, notes = case_tables.lists(records)
    return [*lines(table), *noted(notes)]


def workloads(records):
    table, notes = case_tables.workloads(records)
    return [*lines(table), "", *noted(notes)] if table.rows else []


def energy(records):
    return lines(case_tables.energy(records))


def crossover(records):
    return lines(case_tables.crossover(records))


def host_times(entries):
    return lines(case_tables.host_times(entries))


def predictions(records):
    """How far off the cost model is: in words, by family, and the worst."""
    if not model_error.predicted(records):
        return []
    return [model_error.sentence(records), "", *lines(model_error.by_family(records)), "",
            "The worst:", "", *lines(model_error.worst(records))]


def ceilings_and_tests(result):
    """What the card gave without any of our kernels, and how tests and random problems ended."""
    c, texts = result["ceilings"], []
    if "copy_tbs" in c:
        texts.append(f"A copy moves {c['copy_tbs']:.2f} TB/s.")
    if "cublas_bf16" in c:
        sustained = (f", {number(c['cublas_bf16_sustained'])} sustained"
                     if "cublas_bf16_sustained" in c else "")
        texts.append(f"cuBLAS multiplies 8192x8192x8192 in bf16 at {number(c['cublas_bf16'])} "
                     f"TFLOPS in bursts{sustained}.")
    counts, verified = result_files.endings(result["tests"]), result_files.verified(result)
    texts += [f"Tests: {counts}."] if counts else []
    texts += [f"{verified}."] if verified else []
    return [" ".join(texts)] if texts else []


def ceilings(result):
    """What the card gives without any of our kernels, where more than the copy and the dense
    product that every run measures is known; those stand in ceilings_and_tests."""
    c = result["ceilings"]
    if set(c) <= {ceiling.COPY, *ceiling.CUBLAS.values()}:
        return []
    tensor, others = lines(ceiling.tensor_table(c)), lines(ceiling.other_table(c))
    return [*tensor, *([""] if tensor and others else []), *others]


def provenance(result, kernels=None, records=None):
    """Where these records' figures, or all, are from, in a line; one more before it where some of
    them are stale. kernels: those of the tree."""
    parts = result.get("parts") or [result]
    words = [card(result), *sorted({part["date"][:10] for part in parts})]
    words += [f"commit {one}" for one in commits(parts)]
    cases = result["cases"] if records is None else records
    stale = in_words(cases, kernels) if result["gpu"] else []
    return [*stale, ", ".join(words)]


def card(result):
    """The card, its power limit, driver and CUDA; of a CPU its name."""
    gpu, toolkit = result["gpu"], result["toolkit"]
    if not gpu:
        return result["cpu"]["name"]
    words = [gpu["name"]]
    words += [f"{gpu['power_limit_w']:.0f} W"] if gpu.get("power_limit_w") else []
    words += [f"driver {gpu['driver']}"] if gpu.get("driver") else []
    words += [f"CUDA {toolkit['cuda']}"] if toolkit.get("cuda") else []
    return ", ".join(words)


def commits(parts):
    """Short, with the + of a changed tree."""
    return [one.rstrip("+")[:12] + ("+" if one.endswith("+") else "")
            for one in sorted({part["commit"] for part in parts if part["commit"]})]
