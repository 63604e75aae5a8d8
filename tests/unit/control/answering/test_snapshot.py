"""Memory that one process writes and another reads without a lock."""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path

from otel_bridge.control.answering.snapshot import SIZE, TOO_LARGE, Reader, Writer


def test_what_is_written_is_read_once(tmp_path):
    """A reader hears of each content once; in the beginning it is to ask."""
    writer = Writer(tmp_path / "s")
    reader = Reader(tmp_path / "s")
    assert reader.read() == TOO_LARGE
    assert reader.read() is None
    writer.write({"ask": False, "breakers": {"llama": {"state": "open"}}})
    writer.write({"ask": False, "breakers": {}})
    assert reader.read() == {"ask": False, "breakers": {}}
    assert reader.read() is None


def test_what_has_no_room_is_asked_for(tmp_path):
    """Rather than cut."""
    writer = Writer(tmp_path / "s")
    reader = Reader(tmp_path / "s")
    writer.write({"ask": False, "breakers": {"x": "y" * SIZE}})
    assert reader.read() == TOO_LARGE


def test_a_torn_content_is_not_taken(tmp_path):
    """While it is written, or where the bytes do not fit the checksum, the old one goes on."""
    writer = Writer(tmp_path / "s")
    reader = Reader(tmp_path / "s")
    reader.read()
    writer._numbers[0] += 1
    assert reader.read() is None
    writer.write({"ask": False, "breakers": {}})
    writer._memory[24:30] = b"??????"
    assert reader.read() is None
    writer.write({"ask": False, "breakers": {"a": 1}})
    assert reader.read() == {"ask": False, "breakers": {"a": 1}}


def write(path: str, count: int) -> None:
    """Contents of all lengths, each of which can be told to be whole."""
    writer = Writer(Path(path))
    for number in range(1, count + 1):
        writer.write({"ask": False, "breakers": {str(number): "x" * (number % 997)}})
    time.sleep(30)


def test_two_processes(tmp_path):
    """Whatever is read was written so, in order, to the last."""
    path, count = tmp_path / "s", 20_011
    process = multiprocessing.get_context("spawn").Process(target=write, args=(str(path), count), daemon=True)
    process.start()
    while not (path.exists() and path.stat().st_size == SIZE):
        assert process.is_alive()
    reader, last = Reader(path), 0
    while last < count:
        content = reader.read()
        if content is not None and content["breakers"]:
            [(name, text)] = content["breakers"].items()
            assert text == "x" * (int(name) % 997)
            assert int(name) > last
            last = int(name)
    process.kill()
    process.join()
