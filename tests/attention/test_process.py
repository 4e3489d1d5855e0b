"""What the native kernel does to the process that it runs in."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from dualpath.attention import kernels

pytestmark = pytest.mark.skipif(kernels.available() == ("python",), reason="capability: the native kernel")


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60.0, check=False
    )


def test_an_interpreter_may_end_while_a_thread_is_in_the_kernel() -> None:
    ended = run(
        """
        import threading
        import numpy as np
        from dualpath.attention import copy_blocks

        source, target = np.zeros(1 << 24, np.uint8), [memoryview(bytearray(1 << 24))]
        begun = threading.Event()

        def copy():
            while True:
                copy_blocks(source, [0], target, 1 << 24)
                begun.set()

        threading.Thread(target=copy, daemon=True).start()
        begun.wait()
        """
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_rows_that_must_be_widened_need_no_memory_for_a_whole_block() -> None:
    ended = run(
        """
        import resource
        import numpy as np
        from dualpath.attention import BlockTable, Geometry, State, kernels
        from dualpath.attention.dispatch import attend_with
        from dualpath.attention.storage import layer_block_bytes

        tokens = 1 << 19
        geometry = Geometry(1, 65, 65, tokens, "int8", True)
        block = np.zeros(layer_block_bytes(geometry), np.uint8)
        zero, one, ends = np.zeros(1, np.int32), np.full(1, tokens, np.int32), np.array([0, 1], np.int32)
        table = BlockTable([block], zero, np.zeros(1, np.int64), one, np.zeros(1, np.int64), ends, ends)
        q, row = np.zeros((1, 1, 65), np.float32), np.array([tokens - 1])
        mapped = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + (64 << 20),) * 2)
        for kernel in kernels.available()[:-1]:
            state = State.empty(1, 1, 65)
            attend_with(kernel, state, q, row, table, geometry, scale=1.0, window=300, threads=1)
            print(state.exp_sum[0, 0])
        """
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert set(ended.stdout.split()) == {"300.0"}


def test_threads_beyond_all_reason_are_refused() -> None:
    import numpy as np

    for threads in (0, -1, 1025, 1 << 30):
        with pytest.raises(ValueError, match="threads must be 1 to 1024"):
            kernels.native().read_bandwidth(np.zeros(64, np.uint8), threads)
