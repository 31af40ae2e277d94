"""Steps of a launch taken by hand, so that a test can stop between any two of them."""

from __future__ import annotations

import subprocess
import sys

from openai4s_backend_local import shim
from openai4s_backend_local.receipts import Claim, Receipts
from openai4s_provisioner.orchestration.ports import AllocationRequest
from openai4s_provisioner.testing.backend_lab import BackendLab


def receipts_of(lab: BackendLab) -> Receipts:
    return Receipts(lab.state_dir / "receipts")


def abandoned_claim(lab: BackendLab, request: AllocationRequest) -> Receipts:
    """As a submitter leaves it that dies after it made its claim durable and before it started anything."""
    receipts = receipts_of(lab)
    with receipts.locked():
        receipts.claim(request.token, Claim(request.allocation_id, request.workload_id, str(request.attempt_dir), 0.0))
    return receipts


def run_shim(receipts: Receipts, request: AllocationRequest, lock: int, patience_s: float = 10.0) -> int:
    """The launcher by hand; its exit code."""
    command = [
        *(sys.executable, "-I", "-S", shim.__file__, "--folder", str(receipts.folder / request.token)),
        *("--lock", str(lock), "--grace-s", "1", "--time-limit-s", "0", "--"),
        *(sys.executable, "-I", *request.program, "--rank", "0"),
    ]
    environment = {shim.MARKER: request.allocation_id}
    done = subprocess.run(command, env=environment, pass_fds=(lock,), timeout=patience_s, check=False)
    return done.returncode
