"""Jobs on one machine share its GPUs, and each job sees only the GPUs that it has taken."""

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).parents[1]
HOLD = """
import sys
from pipeline.compute import device
device.take_gpus(int(sys.argv[1]))
print(*device.visible_names(), flush=True)
sys.stdin.read()
"""


def test_each_job_has_its_own_gpu(tmp_path: Path) -> None:
    """Four processes take one of four GPUs each. A fifth process needs two GPUs, and waits until one process has been
    killed and another process has ended.
    """
    environment = {**os.environ, "TMPDIR": str(tmp_path), "CUDA_VISIBLE_DEVICES": "0,1,GPU-a/b,3"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with ExitStack() as stack:

        def hold(count: int) -> subprocess.Popen:
            program = [sys.executable, "-c", HOLD, str(count)]
            process = stack.enter_context(subprocess.Popen(program, cwd=ROOT, env=environment, **pipes))
            stack.callback(process.kill)
            return process

        jobs = [hold(1) for _ in range(4)]
        assert sorted(name for job in jobs for name in job.stdout.readline().split()) == ["0", "1", "3", "GPU-a/b"]
        late = hold(2)
        time.sleep(0.5)
        assert late.poll() is None
        jobs[0].kill()  # A killed process frees its GPU too. The late process needs one more, which jobs[1] frees.
        jobs[0].wait()
        jobs[1].communicate("")
        assert len(set(late.stdout.readline().split())) == 2
