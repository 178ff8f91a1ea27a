import platform
import subprocess
import sys

import pytest

PAGES_OF_TEN_TENSORS = """
import resource, sys, torch
from us3l.system.allocation import keep_freed_memory
if "keep" in sys.argv:
    keep_freed_memory()
counts = []
for _ in range(30):
    torch.ones(10_000_000)
    counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(counts[-1] - counts[-11])
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told to keep freed memory")
def test_memory_of_freed_tensors_is_used_again():
    def pages(*arguments: str) -> int:
        command = [sys.executable, "-c", PAGES_OF_TEN_TENSORS, *arguments]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    assert pages("keep") < 10 < pages() / 10
