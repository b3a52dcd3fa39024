"""The command `tessera` of an installed package, and `python -m tessera`: the command-line tool,
which wheels of `make wheel` contain."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from tessera import _ffi


def main() -> NoReturn:
    tool = _ffi.package_folder / "bin" / "tessera"
    if not tool.exists():
        sys.stderr.write(
            "tessera: this installation has no command-line tool, as pip built it from source: "
            "install a wheel of `make wheel`, or run build/release/tessera after `make build`\n")
        sys.exit(3)
    # Some subcommands run modules of this package.
    os.environ.setdefault("TESSERA_PYTHON", sys.executable)
    sys.stdout.flush()
    os.execv(tool, ["tessera", *sys.argv[1:]])


if __name__ == "__main__":
    main()
