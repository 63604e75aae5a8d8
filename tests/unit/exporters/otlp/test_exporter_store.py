"""The SQLite store: order, bounds, restarts, and damage to each page of its files."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from otel_bridge.exporters.otlp.config import StorageConfig
from otel_bridge.exporters.otlp.disk_error import DiskError, DiskFullError
from otel_bridge.exporters.otlp.record import Append, Record
from otel_bridge.exporters.otlp.salvage import PAGE_SIZE
from otel_bridge.exporters.otlp.store import Store
from otel_bridge.model import Signal
from otel_bridge.testing import FakeClock

START_NS = 1_700_000_000_000_000_000


def make_store(directory: Path, clock: FakeClock | None = None, **config) -> Store:
    config = {"directory": directory, "fsync": False, **config}
    return Store(directory / "otlp", StorageConfig.model_validate(config), clock or FakeClock())


def tagged(number: int, size: int) -> bytes:
    """A payload that can be found again in any page that holds 24 bytes of it."""
    tag = b"<%010d>" % number
    return (tag * (size // len(tag) + 1))[:size]


def fill(store: Store, sizes: list[int], *, group: int = 7) -> list[bytes]:
    payloads = [tagged(number, size) for number, size in enumerate(sizes, 1)]
    for start in range(0, len(payloads), group):
        written = store.append(
            [
                Append(Signal.TRACES, payload, 2, START_NS + start + place, taken=False)
                for place, payload in enumerate(payloads[start : start + group])
            ]
        )
        assert not [result for result in written if isinstance(result, DiskError)]
    return payloads


def drain(store: Store, limit: int = 1 << 20) -> list[Record]:
    records = []
    while batch := store.take(limit):
        records.extend(batch)
        store.done([record.number for record in batch])
    return records


def sizes_for_test(count: int) -> list[int]:
    """Small ones that share a page, medium ones, and some over many pages."""
    rng = random.Random(23)
    return [rng.choice([60, 200, 200, 900, 3000, 9001, 40_000]) for _ in range(count)]


def test_requests_come_back_oldest_first_as_they_were(tmp_path):
    store = make_store(tmp_path)
    store.open()
    payloads = fill(store, sizes_for_test(50))
    assert store.requests == store.waiting == 50
    records = drain(store)
    assert [record.payload for record in records] == payloads
    assert [record.number for record in records] == list(range(1, 51))
    assert {record.items for record in records} == {2}
    assert [record.received_ns for record in records] == sorted(record.received_ns for record in records)
    assert store.requests == store.bytes == 0
    store.close()


def test_nothing_is_left_on_disk_once_all_is_delivered(tmp_path):
    store = make_store(tmp_path)
    store.open()
    fill(store, [500] * 20)
    drain(store)
    assert not [path for path in (tmp_path / "otlp").iterdir() if path.name[0].isdigit()]


def test_a_batch_is_of_one_signal_and_within_the_limit(tmp_path):
    store = make_store(tmp_path)
    store.open()
    signals = [Signal.TRACES, Signal.TRACES, Signal.LOGS, Signal.TRACES, Signal.METRICS]
    store.append([Append(signal, b"x" * 100, 1, START_NS, taken=False) for signal in signals])
    assert [len(store.take(250)) for _ in range(4)] == [2, 1, 1, 1]
    assert store.take(250) == []


def test_a_batch_has_at_least_one_request_however_large(tmp_path):
    store = make_store(tmp_path)
    store.open()
    fill(store, [5000, 10])
    assert [record.number for record in store.take(100)] == [1]


def test_what_was_not_delivered_comes_again_in_its_place(tmp_path):
    store = make_store(tmp_path)
    store.open()
    fill(store, [100] * 6)
    first, second = store.take(200), store.take(200)
    store.untake([record.number for record in first])
    assert store.waiting == 4
    assert [record.number for record in store.take(200)] == [1, 2]
    store.untake([record.number for record in second])
    assert [record.number for record in store.take(1000)] == [3, 4, 5, 6]


def test_a_request_written_while_in_flight_is_not_given_out(tmp_path):
    store = make_store(tmp_path)
    store.open()
    (number,) = store.append([Append(Signal.TRACES, b"x", 1, START_NS, taken=True)])
    assert store.waiting == 0
    assert store.take(100) == []
    store.untake([number])
    assert [record.number for record in store.take(100)] == [number]


def test_a_restart_finds_what_was_left_and_numbers_go_on(tmp_path):
    store = make_store(tmp_path)
    store.open()
    payloads = fill(store, sizes_for_test(40))
    taken = store.take(1)
    store.done([record.number for record in taken])
    store.take(10_000)
    store.close()
    again = make_store(tmp_path)
    again.open()
    assert again.waiting == 39
    (number,) = again.append([Append(Signal.TRACES, b"new", 1, START_NS, taken=False)])
    assert number == 41
    assert [record.payload for record in drain(again)] == [*payloads[1:], b"new"]
    assert not again.losses


def test_many_segments(tmp_path):
    store = make_store(tmp_path, max_size="1MiB")
    store.open()
    payloads = fill(store, [9000] * 60)
    segments = [path for path in (tmp_path / "otlp").iterdir() if path.name[0].isdigit()]
    assert len([path for path in segments if path.suffix == ".sqlite"]) > 5
    assert [record.payload for record in drain(store)] == payloads


def test_a_full_store_refuses_and_takes_again_when_there_is_room(tmp_path):
    store = make_store(tmp_path, max_size="1MiB")
    store.open()
    results = store.append([Append(Signal.TRACES, b"x" * 50_000, 1, START_NS, taken=False)] * 30)
    refused = [result for result in results if isinstance(result, DiskFullError)]
    assert 8 <= len(refused) <= 12
    assert "max_size" in str(refused[0])
    assert store.bytes <= (1 << 20) + (1 << 16)
    kept = drain(store)
    assert len(kept) == 30 - len(refused)
    fill(store, [50_000])


def test_drop_oldest_makes_room_and_says_what_was_lost(tmp_path):
    store = make_store(tmp_path, max_size="1MiB", when_full="drop_oldest")
    store.open()
    fill(store, [20_000] * 100)
    kept = drain(store)
    numbers = [record.number for record in kept]
    assert numbers == list(range(numbers[0], 101)), "the youngest are kept"
    assert len(numbers) > 40
    lost = sum(loss.requests for loss in store.losses)
    assert lost == 100 - len(numbers)
    assert {loss.reason for loss in store.losses} == {"disk_full"}
    assert sum(loss.items[Signal.TRACES] for loss in store.losses) == 2 * lost
    assert store.losses[0].first_ns == START_NS
    assert store.losses[-1].last_ns == kept[0].received_ns - 1
    assert "lost_from" in store.losses[0].details()


def test_drop_oldest_never_takes_what_is_in_flight_for_lost(tmp_path):
    store = make_store(tmp_path, max_size="1MiB", when_full="drop_oldest")
    store.open()
    fill(store, [20_000] * 3)
    in_flight = store.take(20_000)
    fill(store, [20_000] * 100)
    lost = sum(loss.requests for loss in store.losses)
    store.done([record.number for record in in_flight])
    assert lost + len(drain(store)) == 102


def test_files_are_private(tmp_path):
    os.umask(0)
    try:
        store = make_store(tmp_path / "deep" / "er")
        store.open()
        fill(store, [100])
        directory = tmp_path / "deep" / "er" / "otlp"
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o600}
        assert stat.S_IMODE((tmp_path / "deep" / "er").stat().st_mode) == 0o700
    finally:
        os.umask(0o022)


def test_one_process_for_one_directory(tmp_path):
    store = make_store(tmp_path)
    store.open()
    with pytest.raises(DiskError, match=rf"in use by another process \(pid {os.getpid()}\); stop it"):
        make_store(tmp_path).open()
    store.close()
    make_store(tmp_path).open()


# Damage. Each case: fill, close, damage a file, open: nothing whole is missing, what is lost is counted.


def filled(directory: Path, count: int = 120) -> dict[int, bytes]:
    store = make_store(directory)
    store.open()
    payloads = fill(store, sizes_for_test(count))
    store.close()
    return dict(enumerate(payloads, 1))


def segment_of(directory: Path) -> Path:
    (path,) = [
        path for path in (directory / "otlp").iterdir() if path.name[0].isdigit() and path.suffix == ".sqlite"
    ]
    return path


def check(directory: Path, payloads: dict[int, bytes], untouched: set[int]) -> Store:
    """Open the store and drain it; `untouched` are the numbers that the damage did not touch."""
    store = make_store(directory)
    store.open()
    records = drain(store)
    numbers = [record.number for record in records]
    assert numbers == sorted(set(numbers)), "in order, each once"
    assert all(record.payload == payloads[record.number] for record in records)
    assert untouched <= set(numbers)
    lost = [loss for loss in store.losses if loss.reason == "damaged"]
    assert sum(loss.requests for loss in lost) == len(payloads) - len(records)
    assert sum(loss.items.total() for loss in lost) == 2 * (len(payloads) - len(records))
    return store


def test_damage_to_any_page_of_a_segment_costs_only_what_was_on_it(tmp_path):
    """cases.md otlp-queue (b), at each place instead of the middle only."""
    payloads = filled(tmp_path / "whole")
    content = segment_of(tmp_path / "whole").read_bytes()
    assert len(content) % PAGE_SIZE == 0
    pages = len(content) // PAGE_SIZE
    assert pages > 200
    most_lost = 0
    for page in range(pages):
        start = page * PAGE_SIZE
        here = content[start : start + PAGE_SIZE]
        # Of an overflow page's last bytes too few may be there to show the whole tag.
        touched = {
            number for number in payloads if b"<%010d>" % number in here or _tail(payloads[number]) in here
        }
        directory = tmp_path / "damaged"
        shutil.copytree(tmp_path / "whole", directory)
        with segment_of(directory).open("r+b") as file:
            file.seek(start)
            file.write(bytes(PAGE_SIZE))
        store = check(directory, payloads, set(payloads) - touched)
        kept = list((directory / "otlp" / "damaged").iterdir())
        assert len(kept) == 1
        assert kept[0].read_bytes()[:start] == content[:start]
        assert kept[0].stat().st_mode & 0o077 == 0
        most_lost = max(most_lost, sum(loss.requests for loss in store.losses))
        store.close()
        shutil.rmtree(directory)
    assert most_lost > 1, "some page held several requests, or this test shows nothing"


def _tail(payload: bytes) -> bytes:
    return payload[-9:]


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_segment_cut_short_keeps_what_is_before_the_cut(tmp_path, share):
    """cases.md otlp-queue (c)."""
    payloads = filled(tmp_path)
    path = segment_of(tmp_path)
    content = path.read_bytes()
    cut = int(len(content) * share)
    path.write_bytes(content[:cut])
    gone = content[cut - PAGE_SIZE :]
    untouched = {
        number
        for number in payloads
        if b"<%010d>" % number not in gone and _tail(payloads[number]) not in gone
    }
    check(tmp_path, payloads, untouched)


@pytest.mark.parametrize(
    "content",
    [b"", b"garbage", os.urandom(40_000), b"SQLite format 3\0" + bytes(9000)],
    ids=lambda c: str(len(c)),
)
def test_a_segment_that_is_no_database_is_counted_and_set_aside(tmp_path, content):
    """cases.md otlp-queue (d)."""
    payloads = filled(tmp_path)
    segment_of(tmp_path).write_bytes(content)
    store = check(tmp_path, payloads, set())
    assert sum(loss.requests for loss in store.losses) == 120
    (kept,) = (tmp_path / "otlp" / "damaged").iterdir()
    assert kept.read_bytes() == content
    fill(store, [100])
    assert len(drain(store)) == 1


def test_a_segment_that_somebody_deleted_is_counted(tmp_path):
    payloads = filled(tmp_path)
    segment_of(tmp_path).unlink()
    store = check(tmp_path, payloads, set())
    assert sum(loss.requests for loss in store.losses) == 120


def kept_in_order(directory: Path) -> list[bytes]:
    """The first byte of each file that was set aside, the oldest first."""
    kept = (directory / "otlp" / "damaged").glob("*.sqlite")
    return [path.read_bytes()[:1] for path in sorted(kept, key=lambda path: int(path.stem.split("-")[1]))]


def test_damaged_files_are_kept_up_to_a_size_and_the_oldest_go(tmp_path, capsys):
    """Each that goes is named in the log; files that somebody else put there stay."""
    size = 5000
    foreign = tmp_path / "otlp" / "damaged" / "notes.txt"
    clock = FakeClock()
    for number in range(5):
        clock.step_wall(1)
        filled(tmp_path, 3)
        segment_of(tmp_path).write_bytes(b"%d" % number * size)
        store = make_store(tmp_path, clock=clock, max_damaged_size=3 * size + 1)
        store.open()
        drain(store)
        (loss,) = [loss for loss in store.losses if loss.aside is not None]
        assert loss.aside.exists()
        assert loss.aside.read_bytes() == b"%d" % number * size
        store.close()
        foreign.write_text("mine" * size)
    assert kept_in_order(tmp_path) == [b"2", b"3", b"4"]
    said = capsys.readouterr().out
    assert said.count("is kept no longer") == 2
    assert "storage.max_damaged_size" in said
    assert foreign.exists()
    # A smaller bound counts from the next start on.
    store = make_store(tmp_path, max_damaged_size=size)
    store.open()
    assert kept_in_order(tmp_path) == [b"4"]
    store.close()


def test_no_damaged_file_is_kept_where_none_may_be(tmp_path):
    payloads = filled(tmp_path)
    segment_of(tmp_path).write_bytes(b"garbage")
    store = make_store(tmp_path, max_damaged_size=0)
    store.open()
    drain(store)
    assert sum(loss.requests for loss in store.losses) == len(payloads)
    assert all(loss.aside is None and "set aside" not in loss.text for loss in store.losses)
    assert not list((tmp_path / "otlp" / "damaged").iterdir())


def test_damage_in_one_segment_leaves_the_others_alone(tmp_path):
    store = make_store(tmp_path, max_size="1MiB")
    store.open()
    payloads = dict(enumerate(fill(store, [9000] * 60), 1))
    store.close()
    segments = sorted(
        path for path in (tmp_path / "otlp").iterdir() if path.suffix == ".sqlite" and path.name[0] == "0"
    )
    segments[2].write_bytes(b"")
    low, high = int(segments[2].stem), int(segments[3].stem)
    check(tmp_path, payloads, set(range(1, low)) | set(range(high, 61)))


def test_damage_to_any_page_of_the_index_loses_nothing(tmp_path):
    payloads = filled(tmp_path / "whole", 400)
    pages = (tmp_path / "whole" / "otlp" / "index.sqlite").stat().st_size // PAGE_SIZE
    assert pages > 3
    for page in range(pages):
        directory = tmp_path / "damaged"
        shutil.copytree(tmp_path / "whole", directory)
        with (directory / "otlp" / "index.sqlite").open("r+b") as file:
            file.seek(page * PAGE_SIZE)
            file.write(bytes(PAGE_SIZE))
        check(directory, payloads, set(payloads)).close()
        shutil.rmtree(directory)


@pytest.mark.parametrize(
    "content", [None, b"", b"garbage", os.urandom(20_000)], ids=["gone", "empty", "text", "noise"]
)
def test_an_index_that_is_none_loses_nothing(tmp_path, content):
    payloads = filled(tmp_path)
    path = tmp_path / "otlp" / "index.sqlite"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    store = check(tmp_path, payloads, set(payloads))
    (number,) = store.append([Append(Signal.TRACES, b"new", 1, START_NS, taken=False)])
    assert number == 121


def test_index_and_segment_both_damaged(tmp_path):
    payloads = filled(tmp_path)
    (tmp_path / "otlp" / "index.sqlite").write_bytes(b"garbage")
    path = segment_of(tmp_path)
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2 // PAGE_SIZE * PAGE_SIZE)
        file.write(bytes(PAGE_SIZE))
    store = make_store(tmp_path)
    store.open()
    records = drain(store)
    assert len(records) >= 100
    assert all(record.payload == payloads[record.number] for record in records)


def test_an_index_behind_its_segments_learns_of_the_rest(tmp_path):
    """The index is not synced: after a power loss it may be older than the segments."""
    store = make_store(tmp_path)
    store.open()
    payloads = fill(store, [100] * 10)
    store.close()
    shutil.copy(tmp_path / "otlp" / "index.sqlite", tmp_path / "old")
    store = make_store(tmp_path)
    store.open()
    payloads += fill(store, [200] * 10)
    store.close()
    shutil.copy(tmp_path / "old", tmp_path / "otlp" / "index.sqlite")
    store = make_store(tmp_path)
    store.open()
    assert len(drain(store)) == 20


def test_the_disk_is_full_for_real(tmp_path):
    """cases.md otlp-queue (f), by a limit on file sizes: works without root."""
    code = """
import resource, sys
from pathlib import Path
from test_exporter_store import *
store = make_store(Path(sys.argv[1]))
store.open()
payloads = fill(store, [5000] * 10)
resource.setrlimit(resource.RLIMIT_FSIZE, (120_000, resource.RLIM_INFINITY))
results = store.append([Append(Signal.TRACES, tagged(99, 100_000), 2, START_NS, taken=False)])
assert isinstance(results[0], DiskError), results
print(results[0])
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
(number,) = store.append([Append(Signal.TRACES, b"later", 2, START_NS, taken=False)])
assert isinstance(number, int)
assert [record.payload for record in drain(store)] == [*payloads, b"later"]
assert not store.losses
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert str(tmp_path / "otlp") in done.stdout
    assert "df -h" in done.stdout


def test_a_directory_that_cannot_be_made_says_how_to_mend_it(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskError, match=r"cannot be used: .*; look at it: ls -la"):
        make_store(tmp_path / "file").open()


@pytest.mark.parametrize(
    "damage", ["signal = 7", "signal = -1", "received_ns = 9223372036854775807", "items = -5"]
)
def test_a_damaged_column_costs_its_row_and_no_more(tmp_path, damage):
    """A segment is copied into a new index unverified; whatever stands there, the queue goes on."""
    store = make_store(tmp_path)
    store.open()
    fill(store, [200] * 3)
    store.close()
    directory = tmp_path / "otlp"
    (segment,) = directory.glob("0*.sqlite")
    with contextlib.closing(sqlite3.connect(segment)) as connection, connection:
        connection.execute(f"UPDATE record SET {damage} WHERE number = (SELECT min(number) FROM record)")
    (directory / "index.sqlite").unlink()
    store = make_store(tmp_path)
    store.open()
    assert len(drain(store)) == 2
    assert sum(loss.requests for loss in store.losses) == 1
    assert all(loss.details() and loss.items.total() >= 0 for loss in store.losses)
