"""How the profile counts its samples, and what it says when it cannot take any."""

from __future__ import annotations

from pathlib import Path

import pytest

from perf.profile import NO_PERF, first_lines, python_functions, readable, recorded, sampled, share_lines


@pytest.mark.parametrize(
    ("frames", "counts_for"),
    [
        (
            ["ffffffff81 tcp_sendmsg ([kernel.kallsyms])", "ffffffff80 __x64_sys_sendto ([kernel.kallsyms])"],
            "sendto  (system call)",
        ),
        (
            ["ffffffff81 schedule ([kernel.kallsyms])", "ffffffff80 exit_to_user_mode_loop ([kernel.kallsyms])"],
            "preempted: other threads wanted the core",
        ),
        (["ffffffff81 irq ([kernel.kallsyms])"], "interrupts and the rest of the kernel"),
        (
            ["7f00 __pyx_f_7kbroker_5_core_9partition_partition_append (/a/partition.cpython-311.so)", "7f01 x (y)"],
            "partition.partition_append  (partition)",
        ),
        (["7f00 PyObject_Malloc (/usr/lib/libpython3.11.so.1.0)"], "PyObject_Malloc  (libpython3)"),
    ],
)
def test_a_sample_counts_for_its_function_or_its_system_call(frames: list[str], counts_for: str) -> None:
    assert sampled(frames) == counts_for


def test_methods_of_extension_classes_have_the_names_of_their_source() -> None:
    assert readable("__pyx_f_7kbroker_5_core_9processor_9Processor_read_turn") == "processor.Processor.read_turn"
    assert readable("malloc") == "malloc"


def test_python_samples_are_counted_by_function_whatever_the_line(tmp_path: Path) -> None:
    (tmp_path / "raw").write_text("run (a.py:1);f (b.py:2) 3\nrun (a.py:1);f (b.py:9) 2\nrun (a.py:4) 1\n")
    itself, together = python_functions(tmp_path / "raw")
    assert itself == {"f (b.py)": 5, "run (a.py)": 1} and together["run (a.py)"] == 6


def test_a_missing_tool_is_one_line_that_says_what_to_install() -> None:
    assert recorded(["no-such-profiler"], NO_PERF) == NO_PERF and "install" in NO_PERF


def test_the_first_rows_of_each_table_are_printed() -> None:
    _itself, together = python_functions(Path("/nonexistent"))
    together.update({f"f{number}": number for number in range(1, 40)})
    lines = first_lines([*share_lines("A", together, 100), *share_lines("B", together, 100)])
    assert sum(" %  " in line for line in lines) == 50
