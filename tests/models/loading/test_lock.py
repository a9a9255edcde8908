import subprocess
import sys
import threading
import time
from pathlib import Path

from draftwood.models.loading.lock import locked

HOLD = """
import sys, time
from pathlib import Path
from draftwood.models.loading.lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_one_thread_at_a_time(tmp_path: Path):
    inside, most = 0, 0

    def work():
        nonlocal inside, most
        for _ in range(5):
            with locked(tmp_path / "a.lock", pause=0.001):
                inside += 1
                most = max(most, inside)
                time.sleep(0.002)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_without_waiting_says_whether_it_is_held(tmp_path: Path):
    with locked(tmp_path / "a.lock") as mine:
        with locked(tmp_path / "a.lock", wait=False) as second:
            assert mine and not second
        with locked(tmp_path / "b.lock", wait=False) as other:
            assert other
    with locked(tmp_path / "a.lock", wait=False) as again:
        assert again


def test_a_killed_holder_lets_go(tmp_path: Path, child_env):
    command = [sys.executable, "-c", HOLD, str(tmp_path / "a.lock")]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=child_env())
    with holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with locked(tmp_path / "a.lock", wait=False) as held:
            assert not held
        holder.kill()
        holder.wait()
        with locked(tmp_path / "a.lock", wait=False) as held:
            assert held
