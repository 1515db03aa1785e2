"""The faults of a soak: how each begins and how it ends."""

import dataclasses
import typing

DISK_MB = 3_072
NVME_BYTES = 1_610_612_736
BUCKET_BYTES = 2_147_483_648
# A hundredth of what disk and server do.
SLOW_BYTES, SLOW_ANSWER_MS = 11_000_000, 1_000


@dataclasses.dataclass
class Kind:
    name: str
    begin: typing.Callable[[], None]
    end: typing.Callable[[], None]
    # How long it lasts, at least and at most.
    seconds: tuple[float, float] = (4.0, 15.0)
    # What it was done to so far, where that can be counted.
    done: typing.Callable[[], int] | None = None


def kinds(house, engines):
    disk, damage, tell = house.disk, house.damage, lambda line: lambda: house.proxy.tell(line)
    spoilt = lambda: house.proxy.counts()["total"]["faults"]
    files = lambda name, how: Kind(f"files: {name}", lambda: damage.begin(how), damage.end, done=lambda: damage.made)
    answers = lambda name, line: Kind(f"server: {name}", tell(line), tell("clear"), done=spoilt)
    return [
        Kind("disk: EIO for everything", disk.fail, lambda: disk.fail(False)),
        Kind("disk: answers nothing", disk.hang, lambda: disk.hang(False)),
        Kind("disk: a hundredth of its speed", lambda: disk.slow(SLOW_BYTES), disk.slow),
        Kind("disk: no space left", disk.fill, lambda: disk.fill(False)),
        Kind("disk: turns read-only, mounted anew", disk.break_into_read_only, lambda: house.without_daemon(disk.repair)),
        Kind("disk: power lost, what was not flushed gone", lambda: house.without_daemon(disk.lose_power), lambda: None, (2.0, 4.0)),
        files("a bit turned over", "flip"),
        files("torn: the end was not written", "tear"),
        files("lost: nothing was written", "lose"),
        files("pages written in another order", "reorder"),
        files("another block's bytes", "misdirect"),
        files("another block's file under a second name", "duplicate"),
        files("exchanged", "exchange"),
        files("cut short", "cut"),
        files("back as they were", "bring_back"),
        files("gone", "take_away"),
        Kind("server: answers nothing (SIGSTOP)", lambda: house.server.stop(), lambda: house.server.go_on()),
        Kind("server: kill -9, started again", lambda: house.server.end(), lambda: house.server.again()),
        Kind("server: each answer a second late", tell(f"latency {SLOW_ANSWER_MS}"), tell("latency 0")),
        answers("500 for everything", "fail 1"),
        answers("503 for half", "fail 0.5 503"),
        answers("404 for a third", "fail 0.3 404"),
        answers("412 for a third", "fail 0.3 412"),
        answers("bodies cut short that look whole, a third", "fault truncated 0.3"),
        answers("bits turned over in bodies, a third", "fault wrong-bytes 0.3"),
        answers("another range than was asked for, a third", "fault wrong-range 0.3"),
        answers("listings as they were", "fault stale-list 1"),
        answers("a tenth of all answers cut, short, wrong or refused", "mix 0.1"),
        Kind("network: partition from the server", tell("partition on"), tell("partition off")),
        Kind("memory: the cgroup's limit at what is in use", house.squeeze, house.unsqueeze),
        Kind("daemon: no descriptor left", lambda: house.descriptors(2), lambda: house.descriptors(None)),
        Kind("clock: a day ahead, then a month back", house.lie_about_time, house.tell_the_time, (6.0, 12.0)),
        Kind("daemon: kill -9, started again", house.kill, house.start, (0.5, 5.0)),
        Kind("daemon: stopped (SIGSTOP)", lambda: house.freeze(True), lambda: house.freeze(False), (1.0, 6.0)),
        Kind("engine: kill -9, another one in its place", lambda: engines[0].kill(), lambda: None, (1.0, 4.0)),
    ]
