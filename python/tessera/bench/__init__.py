"""Measurements of our operations and of named peers, on the same inputs, in one run.

`python -m tessera.bench --help` lists the commands; docs/gpu_check.md explains the figures.

The modules, in reading order: `cases` (what is measured, as data), `patterns` (which blocks exist),
`flops` (useful work), `problem` (inputs, and the reference for results), `peers` (one file per
adapter), `timing`, `nvml` (clock, power, energy), `results` (result files), `suite` (many cases, in
shards), `table` (the printed table), `ceilings` (the limits of the card).
"""
