"""What was measured, to be read: the documentation's tables and pictures, and one page of HTML with
all of it. Needs nothing but Python itself, so that scripts can use it without the compiled package.

`python -m tessera.report --help` says how to call it. The modules, in reading order: `reading`
(result files, checked, by card), `values` (the figures of one case), `table` (rows and notes),
`case_tables` and `card_tables` (what is told), `markdown` (tables as the documentation has them),
`svg`, `line_chart` and `pictures`, `page` (HTML).
"""
