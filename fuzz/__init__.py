"""Broken and hostile files for every reader of us3l: `python -m fuzz --kind checkpoint --count 10000`."""
