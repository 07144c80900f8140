"""Folders of back ends on the local disk go with their owner, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.core.errors import HostError, UsageError
from penstock.state.rocksdb.folder import LocalFolder

OWNER = """
import sys
from penstock.state.rocksdb.folder import LocalFolder
folder = LocalFolder(sys.argv[1])
(folder.path / "data").write_bytes(b"x")
print(folder.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def owner(tmp_path):
    """Another process with a folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    yield process
    process.kill()
    process.communicate()


def names(tmp_path):
    (base,) = tmp_path.iterdir()
    return sorted(path.name for path in base.iterdir())


def test_a_folder_is_removed_with_its_lock(tmp_path):
    folder = LocalFolder(str(tmp_path))
    (folder.path / "file").write_bytes(b"x")
    folder.remove()
    folder.remove()
    assert names(tmp_path) == []


def test_only_this_user_can_look_into_it(tmp_path):
    folder = LocalFolder(str(tmp_path))
    assert folder.path.stat().st_mode & 0o077 == 0
    assert folder.path.parent.stat().st_mode & 0o077 == 0
    folder.remove()


def test_what_a_killed_process_left_behind_is_removed_by_the_next_one(tmp_path, owner):
    left = Path(owner.stdout.readline().strip())
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    assert left.exists()
    folder = LocalFolder(str(tmp_path))
    assert not left.exists()
    assert names(tmp_path) == [folder.name, f"{folder.name}.lock"]
    folder.remove()


def test_the_folder_of_a_living_process_stays(tmp_path, owner):
    kept = Path(owner.stdout.readline().strip()) / "data"
    folder = LocalFolder(str(tmp_path))
    assert kept.exists()
    folder.remove()
    assert kept.exists()


def test_a_folder_goes_with_the_last_reference_to_it(tmp_path):
    folder = LocalFolder(str(tmp_path))
    assert len(names(tmp_path)) == 2
    del folder
    assert names(tmp_path) == []


def test_a_forked_process_removes_nothing(tmp_path):
    folder = LocalFolder(str(tmp_path))
    child = os.fork()
    if child == 0:
        folder.remove()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert folder.path.exists()
    folder.remove()


def test_two_folders_of_one_process_do_not_meet(tmp_path):
    one, other = LocalFolder(str(tmp_path)), LocalFolder(str(tmp_path))
    assert one.path != other.path
    one.remove()
    assert other.path.exists()
    other.remove()


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(HostError, match="no folder for state can be made"):
        LocalFolder(str(tmp_path / "file"))


# --- folders that somebody else has prepared --------------------------------------------------------------------------


def base_in(tmp_path: Path) -> Path:
    return tmp_path / f"penstock-state-{os.geteuid()}"


@pytest.mark.parametrize("mode", [0o777, 0o755, 0o770, 0o1777])
def test_a_folder_for_state_that_others_can_enter_is_refused(tmp_path, mode):
    base_in(tmp_path).mkdir()
    base_in(tmp_path).chmod(mode)
    with pytest.raises(UsageError, match=f"mode {mode:04o}; other users can enter the folder") as caught:
        LocalFolder(str(tmp_path))
    assert "local_directory" in caught.value.hint
    assert names(tmp_path) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to somebody else")
@pytest.mark.parametrize("mode", [0o777, 0o700])
def test_a_folder_for_state_of_another_user_is_refused(tmp_path, mode):
    base_in(tmp_path).mkdir()
    base_in(tmp_path).chmod(mode)
    os.chown(base_in(tmp_path), 12_345, 12_345)
    with pytest.raises(UsageError, match="belongs to user 12345"):
        LocalFolder(str(tmp_path))
    assert names(tmp_path) == []


def test_a_link_in_place_of_the_folder_for_state_is_refused(tmp_path):
    (tmp_path / "theirs").mkdir(mode=0o700)
    (tmp_path / "local").mkdir()
    base_in(tmp_path / "local").symlink_to(tmp_path / "theirs")
    with pytest.raises(UsageError, match="is not a folder"):
        LocalFolder(str(tmp_path / "local"))
    assert list((tmp_path / "theirs").iterdir()) == []


def test_a_place_where_others_could_swap_the_folder_is_refused(tmp_path):
    tmp_path.chmod(0o777)
    with pytest.raises(UsageError, match="can be replaced by another user"):
        LocalFolder(str(tmp_path))
    tmp_path.chmod(0o1777)
    LocalFolder(str(tmp_path)).remove()
