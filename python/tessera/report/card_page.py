"""The parts of the page that tell of one card."""

from dataclasses import dataclass, replace

from ..bench import results as result_files
from ..bench.cases import ATTENTION, LISTS, PRODUCTS, kind_of
from . import case_tables, ceilings, compare, model_error, summary
from . import energy as joules
from .markdown import commits
from .markup import figure, heading, join, noted, paragraph, tag, whole_table
from .pictures import (
    all_lengths,
    attention_blocks,
    attention_densities,
    attention_joules,
    empty,
    product_blocks,
    product_densities,
    table_of,
)
from .table import Table
from .values import STATES, by_group, case_text, measured

JOULES = {f"joules-{'causal' if causal else 'full'}": attention_joules(128, causal)
          for causal in (False, True)}
DENSITIES = {"attention-density": attention_densities, "product-density": product_densities}
BLOCKS = {"attention-blocks": attention_blocks, "product-blocks": product_blocks}

KINDS = (("Attention", ATTENTION), ("Products", PRODUCTS))


@dataclass
class Section:
    key: str
    title: str
    parts: list

    def html(self, slug):
        key = f"{slug}-{self.key}"
        return tag("section", heading(3, self.title, key), *self.parts, aria_labelledby=key)


def sections(card, slug, before, comparing):
    """before: cards of the same machine to compare with; comparing: whether any were named."""
    made = [at_a_glance(card, slug)]
    if comparing:
        made.append(against(card, before, slug))
    made += [lengths(card, slug), densities(card, slug), blocks(card, slug),
             roofline(card, slug), energy(card, slug), speed_of_light(card, slug),
             predictions(card, slug), correctness(card, slug), cases(card, slug),
             environment(card, slug)]
    return made


def opening(card):
    """When, where and from what the figures are, before all of them."""
    days = sorted({part["date"][:10] for result in card.results
                   for part in result.get("parts") or [result]})
    facts = sorted({f"driver {result['gpu']['driver']}" for result in card.results
                     if result["gpu"] and result["gpu"]["driver"]})
    facts += sorted({f"CUDA {result['toolkit']['cuda']}" for result in card.results
                     if result["gpu"] and result["toolkit"].get("cuda")})
    facts += [" and ".join(days)]
    every = commits([part for result in card.results for part in result.get("parts") or [result]])
    facts += [f"commit {', '.join(every)}"] if every else []
    out = [paragraph(" \u00b7 ".join(facts), class_="facts")]
    for result, file in zip(card.results, card.files, strict=True):
        out += [paragraph(tag("strong", f"{file}: "), f"{words}.", class_="note")
                for words in card.stale_of(result["cases"])]
    return out


def nothing(words):
    return paragraph(words, class_="none")


def drawn(card, chart, table, key, records):
    """A picture of these records, which says how many of them are stale."""
    return figure(replace(chart, about=[*chart.about, *card.stale_of(records)]), table, key)


def figures(card, slug, makers, otherwise):
    """Charts side by side, those that have something to show; or a sentence."""
    made = []
    for stem, make in makers.items():
        chart, shown = make(card.records)
        if not empty(chart):
            made.append(drawn(card, chart, table_of(chart), f"{slug}-{stem}", shown))
    return [tag("div", *made, class_="grid")] if made else [nothing(otherwise)]


def at_a_glance(card, slug):
    records = card.records
    if not summary.compared(records):
        said = ("No case was measured here." if not records else
                f"{len(records)} measurements, none of them beside a peer: nothing to compare.")
        return Section("glance", "At a glance", [nothing(said)])
    told = summary.counts(records)
    tiles = [tag("li", tag("strong", str(told[word])), f" {word}", class_=word) for word in told]
    lost = summary.losses(records)
    parts = [tag("ul", *tiles, class_="tiles"), paragraph(summary.sentence(records)),
             whole_table(summary.by_groups(records), f"{slug}-groups"),
             tag("div", *ratio_strips(card, slug), class_="grid")]
    parts.append(whole_table(lost, f"{slug}-losses") if lost.rows
                 else nothing("No case is slower than its best peer, beyond the spreads."))
    return Section("glance", "At a glance", parts)


def ratio_strips(card, slug):
    """Attention and products apart: their ratios are of different sizes."""
    made = []
    for title, kind in KINDS:
        chosen = [record for record in card.records if kind_of(record["op"]) == kind]
        if summary.compared(chosen):
            made.append(drawn(card, summary.ratios(chosen, title), summary.every(chosen, title),
                              f"{slug}-ratios-{kind}", chosen))
    return made


def against(card, before, slug):
    title = "Against earlier results"
    if not before:
        return Section("against", title, [nothing("No earlier results of this card were named.")])
    old = [record for one in before for record in one.records]
    changed = compare.changes(card.records, old)
    files = ", ".join(file for one in before for file in one.files)
    parts = [paragraph(f"Compared with {files}: the same case in the same state. ",
                       compare.sentence(changed))]
    parts += [whole_table(changed, f"{slug}-changes")] if changed.rows else []
    for key, words, one, other in (("new", "Only in these results", card.records, old),
                                   ("gone", "Only in the earlier results", old, card.records)):
        table = compare.only_in(one, other)
        table.caption = words
        if table.rows:
            parts.append(whole_table(table, f"{slug}-{key}"))
    return Section("against", title, parts)


def lengths(card, slug):
    return Section("lengths", "Attention over sequence length", figures(
        card, slug, all_lengths(card.records),
        "No sustained attention over several lengths was measured here."))


def densities(card, slug):
    parts = figures(card, slug, DENSITIES,
                    "No sparse case was measured here beside its dense case.")
    crossing = case_tables.crossover(card.records)
    if crossing.rows:
        parts.append(whole_table(crossing, f"{slug}-crossover"))
    return Section("densities", "Speed-up over density", parts)


def blocks(card, slug):
    return Section("blocks", "Block size by density", figures(
        card, slug, BLOCKS, "No random patterns were measured here beside their dense case."))


def roofline(card, slug):
    ceil, parts = card.ceilings, []
    listed = [whole_table(table, f"{slug}-{key}") for key, table in
              (("tensor", ceilings.tensor_table(ceil)), ("ceilings", ceilings.other_table(ceil)))
              if table.rows]
    chart = ceilings.roofline(card.records, ceil)
    if chart:
        parts += [paragraph(
            "Bytes are those of inputs and results, once each. What the L2 cache still holds from "
            "the call before comes quicker than memory gives it, so a point can stand above the "
            "slope. The dashed roof is that of the card at its power limit."),
            tag("div", drawn(card, chart, ceilings.points_table(card.records, ceil),
                             f"{slug}-roofline-chart", card.records),
                tag("div", *listed), class_="grid")]
    elif ceil:
        parts += [nothing("No case can be held against these ceilings."), *listed]
    else:
        parts.append(nothing("These files have no measured ceilings, so there is no roofline."))
    return Section("roofline", "Roofline and ceilings", parts)


def energy(card, slug):
    parts = figures(card, slug, JOULES, "No attention over several lengths has figures of energy.")
    chart = joules.scatter(card.records)
    table = case_tables.energy(card.records)
    if chart.groups:
        parts.append(tag("div", drawn(card, chart, joules.every(card.records),
                                      f"{slug}-energy-chart", card.records),
                         whole_table(joules.by_groups(card.records), f"{slug}-frugal"),
                         class_="grid"))
    if table.rows:
        parts.append(whole_table(table, f"{slug}-joules", folded=True))
    return Section("energy", "Energy", parts)


def speed_of_light(card, slug):
    table = ceilings.speed_of_light(card.records, card.ceilings, card.launches)
    if not table.rows:
        return Section("light", "Speed of light", [nothing(
            "Without ceilings of this card, nothing says what limits a case.")])
    parts = [paragraph("The least time that memory and tensor cores allow for the useful work, "
                       "over what it took; sustained cases are held against the rate at the power "
                       "limit. Of lists and patterns nothing is counted, nor the time to launch, "
                       "which decides in the shortest cases.")]
    if not card.launches:
        parts.append(nothing("Registers and shared memory of the kernels are in none of the files "
                             "that this page was made from: no profile of them was named."))
    return Section("light", "Speed of light", [*parts, whole_table(table, f"{slug}-light")])


def predictions(card, slug):
    records = card.records
    if not model_error.predicted(records):
        return Section("model", "Predicted against measured",
                       [nothing("No case has a predicted time.")])
    return Section("model", "Predicted against measured", [
        paragraph("Which kernel runs follows from a cost model, which has to rank kernels rather "
                  f"than tell the time. {model_error.sentence(records)} Where the data decides how "
                  "much work there is, the prediction is an upper bound: it counts what the "
                  "buffers have room for."),
        tag("div", drawn(card, model_error.chart(records), model_error.every(records),
                         f"{slug}-model-chart", records),
            whole_table(model_error.by_family(records), f"{slug}-families"), class_="grid"),
        whole_table(model_error.worst(records), f"{slug}-furthest")])


def correctness(card, slug):
    counts, bad = [], []
    for result, file in zip(card.results, card.files, strict=True):
        ended = result_files.endings(result["tests"]), result_files.verified(result)
        counts += [tag("li", f"{file}: {text}") for text in ended if text]
        bad += [[test["name"], file, test["outcome"], ending(test.get("detail", ""))]
                for test in result["tests"] if test["outcome"] != "passed"]
    parts = [nothing("These files hold no tests.")]
    if counts:
        parts = [paragraph("Tests and random problems that ran with these measurements:"),
                 tag("ul", *counts)]
    if bad:
        parts.append(whole_table(Table(["test", "file", "outcome", "what it said"], bad, 4,
                                       "Tests that did not pass"), f"{slug}-tests"))
    rows = [[case_text(record), record["state"], record["max_error"], record["error_budget"],
             f"{100 * record['max_error'] / record['error_budget']:.0f}%"]
            for record in by_group(card.records)
            if record["max_error"] is not None and record["error_budget"]]
    if rows:
        share = max(float(row[-1].rstrip("%")) for row in rows)
        parts.append(paragraph(
            f"{len(rows)} measurements were held against double precision; the largest use of a "
            f"budget is {share:.0f}%. The error is that of the element that uses most of its "
            "budget."))
        head = ["case", "state", "largest error", "budget", "used"]
        parts.append(whole_table(Table(head, rows, 2, "Errors against their budgets"),
                                 f"{slug}-errors"))
    else:
        parts.append(nothing("No case was held against double precision."))
    return Section("right", "Correctness", parts)


def ending(text, longest=180):
    """What a failure says last says most."""
    return text if len(text) <= longest else "... " + text[-longest:]


def cases(card, slug):
    if not card.records:
        return Section("cases", "All cases", [nothing("There are none.")])
    parts = [paragraph("After a peer's figure stands how many times quicker tessera is. "
                       "cublaslt_dense and tessera_dense are the case with nothing left out: no "
                       "peers, but the dense rate.")]
    for title, kind in KINDS:  # apart, for their peers are others
        chosen = [record for record in card.records
                  if kind_of(record["op"]) == kind and record["op"] not in LISTS]
        tables, notes = case_tables.comparison(chosen)
        states = [state for state in STATES if any(one["state"] == state for one in chosen)]
        for state, table in zip(states, tables, strict=True):
            table.caption = f"{title}. {table.caption}"
            parts.append(whole_table(table, f"{slug}-{kind}-{state}", folded=True))
        parts.append(noted(notes))
    made, _ = case_tables.lists(card.records)
    host = case_tables.host_times([call for result in card.results
                                   for call in result.get("host") or []])
    parts += [whole_table(table, f"{slug}-{key}") for key, table in
              (("lists", made), ("host", host)) if table.rows]
    return Section("cases", "All cases", parts)


def environment(card, slug):
    rows = {}
    for place, (result, file) in enumerate(zip(card.results, card.files, strict=True)):
        gpu = result["gpu"] or {}
        facts = {
            "file": file, "date": result["date"], "GPU": gpu.get("name"),
            "compute capability": gpu.get("compute_capability"),
            "multiprocessors": gpu.get("units"),
            "memory, GiB": gib(gpu.get("memory_bytes")), "L2, MiB": gib(gpu.get("l2_bytes"), 20),
            "driver": gpu.get("driver"), "power limit, W": gpu.get("power_limit_w"),
            "CPU": result["cpu"]["name"], "threads": result["cpu"]["threads"],
            **{name: version for name, version in sorted(result["toolkit"].items())},
            "commit": ", ".join(commits(result.get("parts") or [result])),
            "cases": len(result["cases"]), "tests": len(result["tests"]),
        }
        for name, fact in facts.items():
            if fact not in (None, ""):
                rows.setdefault(name, {})[place] = fact
    head = ["fact", *(f"file {place + 1}" for place in range(len(card.files)))]
    table = Table(head, [[name, *(fact_text(found.get(place)) for place in range(len(card.files)))]
                         for name, found in rows.items()], 1 + len(card.files),
                  "Machines and versions")
    versions = {}
    for record in card.records:
        for name, entry in measured(record).items():
            versions.setdefault(name, {})[entry["version"]] = True
    parts = [whole_table(table, f"{slug}-machine")]
    if versions:
        peers = [[name, "; ".join(found)] for name, found in sorted(versions.items())]
        parts.append(whole_table(Table(["peer", "version"], peers, 2, "Peers"), f"{slug}-peers"))
    return Section("environment", "Environment", [join(*parts)])


def gib(count, shift=30):
    return None if count is None else round(count / 2**shift, 1)


def fact_text(fact):
    return "" if fact is None else fact if isinstance(fact, str) else f"{fact:g}"
