"""A private folder is accepted only if no other user can enter it, or put another folder in its place."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from penstock.core.errors import UsageError
from penstock.private_folders import check_private, make_private

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")
OTHER = 12_345


def made(folder: Path) -> Path:
    make_private(folder, what="the folder", setting="the setting")
    return folder


@pytest.fixture
def deep(tmp_path):
    """A private folder with two folders above it that belong to this user."""
    return made(tmp_path / "far" / "near" / "own")


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o077])
def test_a_folder_that_is_made_is_accepted_whatever_the_umask_is(tmp_path, umask):
    before = os.umask(umask)
    try:
        own = made(tmp_path / "far" / "near" / "own")
    finally:
        os.umask(before)
    assert stat.S_IMODE(own.stat().st_mode) == 0o700


@pytest.mark.parametrize("above", ["near", "far"])
@pytest.mark.parametrize("mode", [0o777, 0o757, 0o703])
def test_a_folder_above_that_all_users_can_write_to_is_refused_however_far_above_it_is(deep, above, mode):
    folder = deep.parents[["near", "far"].index(above)]
    folder.chmod(mode)
    told = f"the folder {deep} can be replaced by another user: folder {folder} has mode {mode:04o}"
    with pytest.raises(UsageError, match=told) as caught:
        made(deep)
    assert "set the setting to a folder of your own" in caught.value.hint
    assert "every folder above must belong to you or to root" in caught.value.hint


@pytest.mark.parametrize("mode", [0o1777, 0o1770])
@pytest.mark.parametrize("above", [0, 1])
def test_a_folder_above_with_the_sticky_bit_is_accepted(deep, above, mode):
    deep.parents[above].chmod(mode)
    made(deep)


def test_a_folder_above_that_the_group_of_this_process_can_write_to_is_accepted(deep):
    for above in deep.parents[:2]:
        os.chown(above, -1, os.getegid())
        above.chmod(0o775)
    made(deep)


@needs_root
@pytest.mark.parametrize("above", [0, 1])
def test_a_folder_above_that_another_group_can_write_to_is_refused(deep, above):
    os.chown(deep.parents[above], -1, OTHER)
    deep.parents[above].chmod(0o775)
    with pytest.raises(UsageError, match=f"folder {deep.parents[above]} has mode 0775"):
        made(deep)


@needs_root
@pytest.mark.parametrize("mode", [0o700, 0o755, 0o1777])
@pytest.mark.parametrize("above", [0, 1])
def test_a_folder_above_that_belongs_to_another_user_is_refused_whatever_its_mode(deep, above, mode):
    os.chown(deep.parents[above], OTHER, OTHER)
    deep.parents[above].chmod(mode)
    with pytest.raises(UsageError, match=f"folder {deep.parents[above]} belongs to user {OTHER}"):
        made(deep)


@pytest.mark.parametrize("relative", [False, True])
def test_links_of_this_user_on_the_way_are_followed(tmp_path, deep, relative):
    (tmp_path / "link").symlink_to("far/../far" if relative else tmp_path / "far")
    check_private(tmp_path / "link" / "near" / "own")


def test_folders_on_the_way_to_the_target_of_a_link_are_checked_too(tmp_path, deep):
    (tmp_path / "link").symlink_to(deep.parent)
    (tmp_path / "far").chmod(0o777)
    with pytest.raises(UsageError, match=f"folder {tmp_path / 'far'} has mode 0777"):
        check_private(tmp_path / "link" / "own")


def test_the_folder_that_a_link_lies_in_is_checked_too(tmp_path, deep):
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "link").symlink_to(deep.parent)
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(UsageError, match=f"folder {tmp_path / 'open'} has mode 0777"):
        check_private(tmp_path / "open" / "link" / "own")


@needs_root
def test_a_link_of_another_user_is_refused(tmp_path, deep):
    (tmp_path / "link").symlink_to(deep.parent)
    os.lchown(tmp_path / "link", OTHER, OTHER)
    with pytest.raises(UsageError, match=f"link {tmp_path / 'link'} belongs to user {OTHER}"):
        check_private(tmp_path / "link" / "own")


def test_links_that_lead_round_in_a_ring_are_an_error(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        check_private(tmp_path / "a" / "own")


def test_no_descriptor_is_left_open(tmp_path, deep):
    (tmp_path / "link").symlink_to("far")
    before = len(list(Path("/proc/self/fd").iterdir()))
    check_private(tmp_path / "link" / "near" / "own")
    with pytest.raises(FileNotFoundError):
        check_private(deep / "missing")
    assert len(list(Path("/proc/self/fd").iterdir())) == before
