#!/usr/bin/env python3
"""Writes the C++ header of the operations' signatures: the position, name and allowed values of
each argument. The build runs it; src/ffi includes the header as <generated/signatures.hpp>.

  signatures_header.py OUTPUT
"""

import importlib.util
import pathlib
import sys

TABLE = pathlib.Path(__file__).parents[1] / "python/tessera/_signatures.py"

# The descriptor in src/ffi/arguments.hpp for each type of argument.
KINDS = {"Tensor": "TensorArgument", "Tensor?": "TensorArgument", "Tensor[]": "TensorsArgument",
         "SymInt": "IntegerArgument", "int": "IntegerArgument", "SymInt?": "LimitArgument",
         "float": "NumberArgument", "float?": "OptionalNumberArgument", "bool": "FlagArgument",
         "str": "TextArgument", "str?": "OptionalTextArgument"}


def read_table():
    """Loads the table without importing the package."""
    spec = importlib.util.spec_from_file_location("_signatures", TABLE)
    table = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = table  # dataclasses look up their module here
    spec.loader.exec_module(table)
    return table


def values_of(part, at, group_type):
    """The initializer of a descriptor or of a struct of descriptors."""
    if isinstance(part, group_type):
        return ", ".join(f".{field} = {{{values_of(member, at, group_type)}}}"
                         for field, member in part.fields.items())
    dtypes = f", {part.dtypes}" if part.dtypes else ""
    return f'{at[part.name]}, "{part.label or part.name}"{dtypes}'


def header_of(signatures, group_type):
    lines = ["// Written by tools/signatures_header.py from python/tessera/_signatures.py.",
             "#pragma once", "", '#include "src/ffi/arguments.hpp"', "",
             "namespace tessera::python::signature {"]
    for signature in signatures:
        at = {x.name: i for i, x in enumerate(signature.exported)}
        lines += ["", f"namespace {signature.name} {{",
                  f'inline constexpr Signature kSignature{{"{signature.op}", {len(at)}}};']
        for part in signature.parts:
            is_group = isinstance(part, group_type)
            kind = f"{part.type}Arguments" if is_group else KINDS[part.type]
            lines.append(f"inline constexpr {kind} {part.name}"
                         f"{{{values_of(part, at, group_type)}}};")
        lines.append(f"}}  // namespace {signature.name}")
    return "\n".join([*lines, "", "}  // namespace tessera::python::signature", ""])


def main(output):
    table = read_table()
    output = pathlib.Path(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(header_of(table.SIGNATURES, table.Group))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
