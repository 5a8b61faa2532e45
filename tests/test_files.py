"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import stat
import threading
import time

import pytest

from pyro_implicit import _files
from pyro_implicit._files import atomic_path


def write(target, text, **options):
    with atomic_path(target, **options) as path:
        path.write_text(text)


def test_a_new_file_and_a_replaced_one(tmp_path):
    target = tmp_path / "a.txt"
    write(target, "one")
    assert target.read_text() == "one"
    write(str(target), "two")
    assert target.read_text() == "two"
    assert os.listdir(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_what_fails_leaves_the_old_file(tmp_path, error):
    target = tmp_path / "a.txt"
    target.write_text("old")
    with pytest.raises(error), atomic_path(target) as path:  # noqa: PT012
        path.write_text("half")
        raise error
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_the_check_sees_the_new_file_and_can_refuse_it(tmp_path):
    target, seen = tmp_path / "a.txt", []
    write(target, "one", check=lambda path: seen.append(path.read_text()))
    assert seen == ["one"]

    def refuse(path):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        write(target, "two", check=refuse)
    assert target.read_text() == "one"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_the_name_stands_only_for_what_is_on_the_disk(tmp_path, monkeypatch):
    order = []
    for name in ("fsync", "replace"):
        original = getattr(os, name)

        def spy(*args, name=name, original=original):
            order.append(name)
            return original(*args)

        monkeypatch.setattr(os, name, spy)
    write(tmp_path / "a.txt", "one")
    assert order == ["fsync", "replace", "fsync"]  # the file, the name, the folder


def test_two_writers_at_once(tmp_path):
    target, errors = tmp_path / "a.txt", []

    def writer(text):
        for _ in range(20):
            try:
                write(target, text * 5000)
            except BaseException as error:  # whatever it is, the test is to know
                errors.append(error)

    threads = [threading.Thread(target=writer, args=(text,)) for text in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert target.read_text() in ("a" * 5000, "b" * 5000)
    assert os.listdir(tmp_path) == ["a.txt"]


def test_planted_links_are_not_followed(tmp_path, monkeypatch):
    victim, target = tmp_path / "victim", tmp_path / "a.txt"
    victim.write_text("precious")
    target.symlink_to(victim)
    monkeypatch.setattr(_files.secrets, "token_hex", lambda n: "known")
    (tmp_path / ".a.txt.known.partial").symlink_to(victim)
    with pytest.raises(FileExistsError):
        write(target, "one")
    monkeypatch.undo()
    write(target, "one")
    assert victim.read_text() == "precious"
    assert not target.is_symlink()


def test_permissions_are_those_of_any_new_file(tmp_path):
    (tmp_path / "plain").write_text("one")
    write(tmp_path / "ours", "one")
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "ours")]
    assert modes[1] == modes[0] & 0o777


def test_leftovers_of_killed_writers_go(tmp_path):
    old = time.time() - 7200
    for name, age in (("a.txt.0", old), ("b.1", old), ("a.txt.2", time.time())):
        path = tmp_path / f".{name}.partial"
        path.write_text("half")
        os.utime(path, (age, age))
    write(tmp_path / "a.txt", "one")
    assert sorted(os.listdir(tmp_path)) == [".a.txt.2.partial", ".b.1.partial", "a.txt"]


def test_a_folder_in_the_way(tmp_path):
    with pytest.raises(IsADirectoryError, match="a folder stands where the file is to be"):
        write(tmp_path, "one")
    with pytest.raises(FileNotFoundError):
        write(tmp_path / "absent" / "a.txt", "one")
