"""Functions with the names and arguments of other libraries: `tessera.compat.flash_attn`."""
