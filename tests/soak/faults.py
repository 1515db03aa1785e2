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


def kinds(house, engines):
    disk, tell = house.disk, lambda line: lambda: house.proxy.tell(line)
    return [
        Kind("disk: EIO for everything", disk.fail, lambda: disk.fail(False)),
        Kind("disk: answers nothing", disk.hang, lambda: disk.hang(False)),
        Kind("disk: a hundredth of its speed", lambda: disk.slow(SLOW_BYTES), disk.slow),
        Kind("disk: no space left", disk.fill, lambda: disk.fill(False)),
        Kind("disk: turns read-only, mounted anew", disk.break_into_read_only, lambda: house.without_daemon(disk.repair)),
        Kind("server: answers nothing (SIGSTOP)", lambda: house.server.stop(), lambda: house.server.go_on()),
        Kind("server: kill -9, started again", lambda: house.server.end(), lambda: house.server.again()),
        Kind("server: each answer a second late", tell(f"latency {SLOW_ANSWER_MS}"), tell("latency 0")),
        Kind("server: 500 for everything", tell("fail 1"), tell("clear")),
        Kind("server: 503 for half", tell("fail 0.5 503"), tell("clear")),
        Kind("server: a tenth of all answers cut, short, wrong or refused", tell("mix 0.1"), tell("clear")),
        Kind("network: partition from the server", tell("partition on"), tell("partition off")),
        Kind("memory: the cgroup's limit at what is in use", house.squeeze, house.unsqueeze),
        Kind("daemon: kill -9, started again", house.kill, house.start, (0.5, 5.0)),
        Kind("daemon: stopped (SIGSTOP)", lambda: house.freeze(True), lambda: house.freeze(False), (1.0, 6.0)),
        Kind("engine: kill -9, another one in its place", lambda: engines[0].kill(), lambda: None, (1.0, 4.0)),
    ]
