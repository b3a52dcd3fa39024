"""Tries the kernels that take given problems on this device and writes down which is the fastest:
`python -m tessera.tune --help`."""
