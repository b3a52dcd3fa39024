"""What was measured, to be read: the documentation's tables and pictures, and one page of HTML with
all of it. Needs nothing but Python itself, so that scripts can use it without the compiled package.

`python -m tessera.report --help` says how to call it. The modules, in reading order: `reading`
(result files, checked, by card), `values` (the figures of one case), `table` (rows, and their CSV),
`case_tables` and `markdown` (the documentation's tables), `svg` with `line_chart`, `scatter`,
`heat_map` and `strip` (kinds of pictures), `pictures` (which cases they show), `summary`,
`ceilings`, `energy`, `model_error` and `compare` (what is concluded), `markup`, `card_page` and
`page` (HTML).
"""
