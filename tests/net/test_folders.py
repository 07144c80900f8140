from __future__ import annotations

import os
import shutil
import stat
import tempfile

import pytest

from penstock.core.errors import HostError, UsageError
from penstock.net.folders import SocketFolder, make_root

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")
not_for_root = pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_the_folder_is_private_and_so_is_the_one_it_lies_in(tmp_path):
    folder = SocketFolder("slot-0", tmp_path / "deep" / "sockets")
    assert folder.socket_path.is_relative_to(tmp_path / "deep" / "sockets")
    assert mode(folder.socket_path.parent) == 0o700
    assert mode(tmp_path / "deep" / "sockets") == 0o700
    assert folder.address == f"ipc://{folder.socket_path}"


def test_a_private_folder_that_is_there_is_used_and_kept(tmp_path):
    ipc_dir = tmp_path / "mine"
    ipc_dir.mkdir(mode=0o700)
    folder = SocketFolder("slot-0", ipc_dir)
    assert folder.socket_path.parent.parent == ipc_dir
    folder.remove()
    assert list(tmp_path.rglob("*")) == [ipc_dir]


def test_a_folder_that_was_made_for_it_goes_with_the_last_socket(tmp_path):
    first = SocketFolder("slot-0", tmp_path / "sockets")
    second = SocketFolder("slot-1", tmp_path / "sockets")
    second.remove()
    first.remove()
    assert list(tmp_path.rglob("*")) == []


def test_a_folder_that_others_use_stays(tmp_path):
    first = SocketFolder("slot-0", tmp_path / "sockets")
    second = SocketFolder("slot-1", tmp_path / "sockets")
    first.remove()
    assert second.socket_path.parent.is_dir()


def test_removing_again_does_nothing(tmp_path):
    folder = SocketFolder("slot-0", tmp_path / "sockets")
    folder.socket_path.touch()
    folder.remove()
    folder.remove()
    assert list(tmp_path.rglob("*")) == []


def test_two_processes_of_one_name_do_not_meet(tmp_path):
    assert SocketFolder("slot-0", tmp_path / "s").address != SocketFolder("slot-0", tmp_path / "s").address


@pytest.mark.parametrize("wide", [0o750, 0o701, 0o777, 0o704])
def test_a_folder_that_others_can_enter_is_refused(tmp_path, wide):
    ipc_dir = tmp_path / "wide"
    ipc_dir.mkdir()
    ipc_dir.chmod(wide)
    with pytest.raises(UsageError, match=f"mode {wide:04o}; other users can enter the folder") as caught:
        SocketFolder("slot-0", ipc_dir)
    assert "0700" in caught.value.hint
    assert list(ipc_dir.iterdir()) == []


@needs_root
def test_a_folder_of_another_user_is_refused(tmp_path):
    ipc_dir = tmp_path / "theirs"
    ipc_dir.mkdir(mode=0o700)
    os.chown(ipc_dir, 12_345, 12_345)
    with pytest.raises(UsageError, match="belongs to user 12345"):
        SocketFolder("slot-0", ipc_dir)


def test_a_link_to_a_folder_is_refused(tmp_path):
    # Whoever owns the link could turn it elsewhere.
    (tmp_path / "target").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(UsageError, match="is not a folder"):
        SocketFolder("slot-0", tmp_path / "link")


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is not a folder"):
        SocketFolder("slot-0", tmp_path / "file")


def test_a_folder_that_cannot_be_made_is_an_error_of_the_host(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(HostError, match="no socket can be made in folder") as caught:
        SocketFolder("slot-0", tmp_path / "file" / "sockets")
    assert "set ipc_dir" in caught.value.hint


@not_for_root
def test_a_folder_that_is_not_writable_is_an_error_of_the_host(tmp_path):
    ipc_dir = tmp_path / "sealed"
    ipc_dir.mkdir(mode=0o500)
    with pytest.raises(HostError, match="Permission denied"):
        SocketFolder("slot-0", ipc_dir)


def test_where_paths_are_too_long_the_socket_goes_to_a_temporary_folder(tmp_path):
    ipc_dir = tmp_path / ("long" * 30)
    folder = SocketFolder("slot-0", ipc_dir)
    assert len(os.fsencode(folder.socket_path)) < 108
    assert not ipc_dir.exists()
    assert mode(folder.socket_path.parent) == 0o700
    folder.remove()
    assert not folder.socket_path.parent.exists()


def test_a_long_temporary_folder_is_passed_over_too(tmp_path, monkeypatch):
    long = tmp_path / ("long" * 30)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    folder = SocketFolder("slot-0", long / "sockets")
    assert len(os.fsencode(folder.socket_path)) < 108
    folder.remove()


@pytest.mark.parametrize("name", ["a/../../b", "ünï cödé", "x" * 255, "slot-0.1.2"])
def test_any_name_of_a_process_gives_a_usable_path(tmp_path, name):
    folder = SocketFolder(name, tmp_path / "s")
    assert folder.socket_path.parent.parent == tmp_path / "s"
    folder.socket_path.touch()
    folder.remove()


def test_the_folder_of_a_jobs_sockets_has_room_for_those_of_its_slots(tmp_path, monkeypatch):
    """A slot that is killed cannot remove its own folder."""
    long = tmp_path / ("x" * 60)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    root = make_root()
    try:
        assert mode(root) == 0o700
        assert SocketFolder("slot-0.1000000001.3", root).socket_path.is_relative_to(root)
    finally:
        shutil.rmtree(root)


def test_the_folder_of_a_jobs_sockets_lies_where_temporary_files_do(monkeypatch):
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        monkeypatch.setattr(tempfile, "tempdir", short)
        assert str(make_root().parent) == short
