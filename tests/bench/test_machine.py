import os
import subprocess
import sys
from pathlib import Path
from time import monotonic

import pytest

from draftwood.bench import machine

linux = pytest.mark.skipif(not Path("/proc/stat").exists(), reason="/proc is read")


@linux
def test_cpu_time_grows_with_work_and_ends_with_the_process():
    before = machine.cpu_seconds(os.getpid())
    end = monotonic() + 0.1
    while monotonic() < end:
        pass
    after = machine.cpu_seconds(os.getpid())
    assert before is not None and after is not None and after > before
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert machine.cpu_seconds(child.pid) is None


@linux
def test_settling_waits_for_one_who_works_and_not_for_one_who_sleeps():
    def seconds(code: str) -> float:
        child = subprocess.Popen([sys.executable, "-c", f"print(flush=True)\n{code}"], stdout=subprocess.PIPE)
        try:
            assert child.stdout is not None
            child.stdout.readline()
            start = monotonic()
            machine.settle([child.pid], patience=0.6)
            return monotonic() - start
        finally:
            child.kill()
            child.communicate()

    assert seconds("while True: pass") >= 0.6
    assert seconds("import time; time.sleep(9)") < 0.6


def test_a_look_says_what_it_saw():
    seen = machine.look(0.05)
    assert len(seen["load"]) in (0, 3) and isinstance(seen["busiest"], list)


def test_a_busy_machine_is_told_loudly_and_a_quiet_one_not_at_all():
    assert machine.warning({"foreign_cores": 0.0, "busiest": []}) is None
    said = machine.warning({"foreign_cores": 1.2, "busiest": [{"name": "compiler", "cores": 1.1}]})
    assert said is not None and "WARNING: 1.2" in said and "compiler (1.1)" in said
