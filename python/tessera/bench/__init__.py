"""Measuring: our operations beside named peers, on the same inputs, in one run.

`python -m tessera.bench --help` says how to call it; docs/gpu_check.md says what the figures mean.

The modules, in reading order: `cases` (what is measured, as data), `patterns` (which blocks exist),
`flops` (what counts as useful), `problem` (inputs, and the reference that results are held
against), `peers` (one file an adapter), `timing` (how), `nvml` (clock, power, energy), `results`
(the file that comes out), `suite` (many cases, in shards), `table` (what is printed), `ceilings`
(what the card gives at most), `profiles` and `one_call` (one kernel, seen by Nsight Compute).
"""
