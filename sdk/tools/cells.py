"""Runs a file of cells for IPython: as IPython does, with `await` outside of functions. Takes the file's path."""

import ast
import asyncio
import sys

with open(sys.argv[1]) as file:
    cells = compile(file.read(), sys.argv[1], "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


async def main() -> None:
    await eval(cells, {"__name__": "__main__"})


asyncio.run(main())
