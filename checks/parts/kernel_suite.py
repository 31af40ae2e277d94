"""The `jupyter_kernel_test` suite for ipykernel; as a program, prints every test's outcome as JSON.

Which provisioner starts the kernel is for the caller to say, by JUPYTER_DEFAULT_PROVISIONER_NAME.
"""

from __future__ import annotations

import json
import sys
import unittest
from typing import ClassVar

import jupyter_kernel_test


class IPyKernelTests(jupyter_kernel_test.KernelTests):
    kernel_name = "python3"
    language_name = "python"
    file_extension = ".py"
    code_hello_world = "print('hello, world')"
    code_stderr = "import sys; print('test', file=sys.stderr)"
    code_page_something = "zip?"
    code_generate_error = "raise"
    code_inspect_sample = "zip"
    code_clear_output = "from IPython.display import clear_output; clear_output()"
    code_history_pattern = "1?2*"
    supported_history_operations = ("tail", "range", "search")
    completion_samples: ClassVar = [{"text": "zi", "matches": {"zip"}}]
    complete_code_samples: ClassVar = ["1", "print('hello, world')", "def f(x):\n  return x*2\n\n\n"]
    incomplete_code_samples: ClassVar = ["print('''hello", "def f(x):\n  x*2"]
    invalid_code_samples: ClassVar = ["import = 7q"]
    code_execute_result: ClassVar = [
        {"code": "1+2+3", "result": "6"},
        {"code": "[n*n for n in range(1, 4)]", "result": "[1, 4, 9]"},
    ]
    code_display_data: ClassVar = [
        {"code": "from IPython.display import HTML, display; display(HTML('<b>test</b>'))", "mime": "text/html"},
        {"code": "from IPython.display import Math, display; display(Math('\\\\frac{1}{2}'))", "mime": "text/latex"},
    ]


def outcomes_of(result: unittest.TestResult, ran: list[str]) -> dict[str, str]:
    """One line for each test that ran: "passed", or what happened to it and in which of its parts."""
    outcomes = dict.fromkeys(ran, "passed")
    for word, found in (("skipped", result.skipped), ("failed", result.failures), ("error", result.errors)):
        for test, _ in found:
            whole = getattr(test, "test_case", test)  # a part of a test (`subTest`) knows the test it belongs to
            part = test.id().removeprefix(whole.id()).strip()
            outcomes[whole.id().rpartition(".")[2]] = f"{word} {part}".strip()
    return outcomes


if __name__ == "__main__":
    loader = unittest.defaultTestLoader
    suite = loader.loadTestsFromTestCase(IPyKernelTests)
    result = unittest.TextTestRunner(stream=sys.stderr).run(suite)
    print(json.dumps(outcomes_of(result, list(loader.getTestCaseNames(IPyKernelTests)))))
