"""The command `tessera` of an installed package, and `python -m tessera`: the command-line tool that a
wheel of `make wheel` holds."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from tessera import _ffi


def main() -> NoReturn:
    tool = _ffi.package_folder / "bin" / "tessera"
    if not tool.exists():
        sys.stderr.write(
            "tessera: this installation has no command-line tool, as it was built from source by pip. "
            "Install a wheel made by `make wheel`, or run build/release/tessera after `make build`\n")
        sys.exit(3)
    # Some subcommands run modules of this package.
    os.environ.setdefault("TESSERA_PYTHON", sys.executable)
    sys.stdout.flush()
    os.execv(tool, ["tessera", *sys.argv[1:]])


if __name__ == "__main__":
    main()
