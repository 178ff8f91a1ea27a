"""Run the notebooks, and keep what they show: `python tools/notebooks.py` after a change to one of them.

Each runs in an empty folder, as in Jupyter. What differs from run to run without meaning anything is not kept.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "notebooks"
SECONDS = 600  # for one cell


def execute(path: Path, folder: Path) -> Any:
    """The notebook with the outputs of a run of all its cells; an error in one is an exception.

    Args:
        path: Of the notebook.
        folder: Where it runs.
    """
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    client = NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": str(folder)}})
    with TemporaryDirectory() as sockets:  # instead of ports
        manager = client.create_kernel_manager()
        manager.transport, manager.ip = "ipc", f"{sockets}/kernel"
        client.execute(env=environment)
    return notebook


def main() -> int:
    """Run those that are named, or all."""
    import nbformat

    for path in [FOLDER / name for name in sys.argv[1:]] or sorted(FOLDER.glob("*.ipynb")):
        with TemporaryDirectory() as folder:
            notebook = execute(path, Path(folder))
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)  # when it ran
        nbformat.write(notebook, path)
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
