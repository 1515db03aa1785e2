"""The system under a soak: a daemon with its tiers, and engines that replay through it."""

import atexit
import http.client
import json
import os
import pathlib
import re
import resource
import signal
import socket
import subprocess
import threading
import time
import urllib.request

from damage import Damage
from disk import lab
import faults

PORT, METRICS_PORT = 18_940, 18_949
PRIMARY_BLOCKS, BLOCK_BYTES = 2_048, 65_536
# Beside the region: the daemon, its threads, staging memory of the object tier, RocksDB, page cache of its logs.
OWN_BYTES = 512 << 20
CGROUP = pathlib.Path("/sys/fs/cgroup/memory/terrace-soak")
# Of the Debian package faketime.
FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1"
# In the trace.
TRACE_REQUESTS = 12_031
# Between reclaims of the server's disk.
RECLAIM_S = 20.0
# Between looks at the disk's use.
USAGE_S = 4.0


class House:
    """A daemon over a sick disk and a sick server. `out` gets the logs."""

    def __init__(self, work, out, disk):
        self.out, self.disk, self.lives, self.process = out, disk, 0, None
        subprocess.run([lab.ROOT / "scripts/packages", "faketime"], check=True)
        self.socket, self._config = work / "terrace.sock", work / "terrace.toml"
        self.server = lab.Server(work / "server", PORT)
        self.proxy = lab.Proxy(self.server, PORT + 10)
        Reclaim(self.server)
        (disk.path / "terrace").mkdir()
        self._config.write_text(
            f'[primary]\nblocks = {PRIMARY_BLOCKS}\n[geometry]\nblock_bytes = {BLOCK_BYTES}\n'
            f'[server]\nsocket = "{self.socket}"\nmetrics = "127.0.0.1:{METRICS_PORT}"\n'
            f'[[tier]]\ntype = "nvme"\npaths = ["{disk.path}/terrace"]\ncapacity = {faults.NVME_BYTES}\n'
            + lab.object_tier(self.proxy.endpoint, self.server.bucket, "soak").replace('"64GiB"', str(faults.BUCKET_BYTES)))
        self.damage = Damage(disk.path / "terrace")
        self._time, self._hard = out / "time", None
        self.usage = Usage(disk.path / "terrace")
        self._limit = PRIMARY_BLOCKS * BLOCK_BYTES + OWN_BYTES
        if CGROUP.parent.is_dir():
            CGROUP.mkdir(exist_ok=True)
            atexit.register(self.end)
            (CGROUP / "memory.limit_in_bytes").write_text(str(self._limit))
        else:
            lab.refuse(f"no {CGROUP.parent}: the daemon's memory limit needs the memory controller of version 1")

    def start(self, more=None):
        """`more`: of its environment."""
        self.lives += 1
        log = (self.out / f"daemon-{self.lives}.log").open("w")
        environment = {**os.environ, "AWS_ACCESS_KEY_ID": lab.ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": lab.SECRET_KEY, **(more or {})}
        # In its cgroup from the first page on.
        enter = f'echo $$ > {CGROUP}/cgroup.procs; exec "$0" "$@"'
        self.process = lab.spawn(["sh", "-c", enter, lab.binary("TERRACE_BIN", "terrace"), "serve", "--config", self._config],
                                 stderr=log, stdout=log, env=environment)

    def must_run(self):
        """A daemon that ended by itself, or that the kernel ended for want of memory, is started again, as a service manager does."""
        if self.process.poll() is not None:
            lab.say(f"the daemon ended with {self.process.returncode}: started again")
            self.start()

    def serves(self):
        """Whether it takes connections. One that is stopped does too."""
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(0.1)
            try:
                client.connect(str(self.socket))
            except OSError:
                return False
        return True

    def end(self):
        """The daemon and its cgroup are gone."""
        if self.process:
            self.freeze(False)
            self.kill()
        CGROUP.rmdir()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def without_daemon(self, work):
        self.kill()
        work()
        self.start()

    def descriptors(self, more):
        """It may open so many more; None: as many as ever."""
        if self._hard is None:
            self._hard = resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE)[1]
        now = self._hard if more is None else len(os.listdir(f"/proc/{self.process.pid}/fd")) + more
        resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE, (now, self._hard))

    def lie_about_time(self):
        """A daemon whose clock is right at first, a day ahead soon, and then a month back."""
        self._time.write_text("+0\n")
        self.kill()
        self.start({"LD_PRELOAD": FAKETIME, "FAKETIME_TIMESTAMP_FILE": str(self._time), "FAKETIME_CACHE_DURATION": "1",
                    "FAKETIME_DONT_FAKE_MONOTONIC": "1", "NO_FAKE_STAT": "1"})
        for after, text in ((2.0, "+1d"), (4.0, "-30d")):
            threading.Timer(after, self._time.write_text, [text + "\n"]).start()

    def tell_the_time(self):
        self.kill()
        self.start()

    def freeze(self, frozen):
        self.process.send_signal(signal.SIGSTOP if frozen else signal.SIGCONT)

    def squeeze(self):
        """As little memory as it uses now, and a megabyte."""
        (CGROUP / "memory.force_empty").write_text("0")
        used = int((CGROUP / "memory.usage_in_bytes").read_text())
        try:
            (CGROUP / "memory.limit_in_bytes").write_text(str(used + (1 << 20)))
        except OSError:
            # It took more meanwhile than can be had back.
            lab.say("the limit could not be set so low")

    def unsqueeze(self):
        (CGROUP / "memory.limit_in_bytes").write_text(str(self._limit))

    def panics(self):
        return sum(path.read_text(errors="replace").count("panicked at") for path in self.out.glob("*.log"))

    def sample(self):
        """What the daemon holds now; less where it cannot say."""
        found = {"disk_is_damaged": self.disk.is_damaged, "nvme_bytes": self.usage.blocks, "catalog_bytes": self.usage.catalog, "cgroup_bytes": int((CGROUP / "memory.usage_in_bytes").read_text())}
        place = pathlib.Path(f"/proc/{self.process.pid}")
        try:
            status = (place / "status").read_text()
            found["own_bytes"] = int(re.search(r"RssAnon:\s+(\d+) kB", status)[1]) << 10
            found["threads"] = int(re.search(r"Threads:\s+(\d+)", status)[1])
            found["descriptors"] = len(os.listdir(place / "fd"))
            with urllib.request.urlopen(f"http://127.0.0.1:{METRICS_PORT}/metrics", timeout=1) as answer:
                text = answer.read().decode()
        except (OSError, TypeError, http.client.HTTPException):
            return found
        total = lambda name, label="": sum(float(value) for labels, value in re.findall(rf"^{name}(\{{.*\}})? (\S+)$", text, re.M) if label in labels)
        for state in ("free", "writing", "evictable", "in_use", "limbo"):
            found[state] = total("terrace_primary_slots", f'state="{state}"')
        found |= {"readers": total("terrace_primary_readers"), "jobs": total("terrace_jobs"), "leases": total("terrace_leases"), "sessions": total("terrace_sessions"),
                  "bucket_bytes": total("terrace_tier_allocated_bytes", 'tier="object"'), "breaker_nvme": total("terrace_tier_breaker", 'tier="nvme"'),
                  "breaker_object": total("terrace_tier_breaker", 'tier="object"')}
        return found


class Engine:
    """Replays its part of the trace over and over, and compares every byte."""

    def __init__(self, house, part, parts):
        self.house, self.part, self.parts, self.number, self.killed = house, part, parts, 0, 0
        self.reports, self.process, self._ended, self._stops = [], None, 0, False
        # Replays that found no daemon when they began, and requests that did not end in one that went to its end.
        self.not_begun = self.lost = 0

    def start(self):
        self.number += 1
        base = self.house.out / f"engine-{self.part}"
        self._files = {kind: base.with_suffix(f".{kind}") for kind in ("json", "log", "samples")}
        self._files["samples"].unlink(missing_ok=True)
        command = [lab.binary("TERRACE_BIN", "terrace"), "replay", "--json", "--connect", self.house.socket, "--block-bytes", BLOCK_BYTES,
                   "--gpu-prefix-cache", "off", "--part", f"{self.part}/{self.parts}", "--samples", self._files["samples"], "--trace", lab.trace()]
        # Its log goes on from replay to replay.
        self.process = lab.spawn(command, stdout=self._files["json"].open("w"), stderr=self._files["log"].open("a"))

    def runs(self):
        return self.process is not None and self.process.poll() is None

    def collect(self):
        """Takes the report of a replay that has ended."""
        if self.process is None or self.runs():
            return
        text = self._files["json"].read_text()
        if text:
            report = json.loads(text)
            self.reports.append({**report, "status": self.process.returncode})
            self._ended += report["requests"]
            if not self._stops:
                self.lost += (TRACE_REQUESTS - self.part) // self.parts + 1 - report["requests"]
        else:
            self._ended += self._sampled()
            self.not_begun += self.process.returncode != -signal.SIGKILL
        if self.process.returncode not in (0, -signal.SIGKILL):
            lab.say(f"engine {self.part} ended with {self.process.returncode}: see {self._files['log']}")
        self.process = None

    def again(self):
        """A replay that has ended is followed by the next."""
        if not self.runs():
            self.collect()
            if not self._stops and self.house.serves():
                self.start()

    def requests(self):
        """That ended so far."""
        return self._ended if self.process is None else self._ended + self._sampled()

    def _sampled(self):
        """Those of the replay that runs, or whose end was not looked at yet."""
        try:
            return json.loads(self._files["samples"].read_text().splitlines()[-1])["requests"]
        except (OSError, IndexError, ValueError):
            return 0

    def kill(self):
        if self.runs():
            self.killed += 1
            self.process.kill()
            self.process.wait()

    def finish(self):
        """It takes no more requests, and ends those that it has."""
        self._stops = True
        if self.runs():
            self.process.send_signal(signal.SIGTERM)


class Reclaim:
    """Has the server give back what was deleted: SeaweedFS does it every quarter of an hour, and an hour's segments would fill this machine's disk."""

    def __init__(self, server):
        threading.Thread(target=self._go, args=(f"http://{server.address}:{server.port + 1}/vol/vacuum?garbageThreshold=0.2",), daemon=True).start()

    def _go(self, url):
        while True:
            time.sleep(RECLAIM_S)
            try:
                urllib.request.urlopen(url, timeout=10).close()
            except (OSError, http.client.HTTPException):
                # It was made sick.
                pass


class Usage:
    """Bytes that blocks and the catalog below a directory take of the disk. A thread looks, for one that hangs keeps whoever looks. A file that gets
    another name meanwhile is counted once.
    """

    def __init__(self, directory):
        self.blocks = self.catalog = 0
        threading.Thread(target=self._look, args=(directory,), daemon=True).start()

    def _look(self, directory):
        while True:
            found = {True: {}, False: {}}
            for place, _, names in os.walk(directory):
                for name in names:
                    try:
                        status = os.lstat(os.path.join(place, name))
                        found["/catalog" in place][status.st_ino] = status.st_blocks * 512
                    except OSError:
                        pass
            self.blocks, self.catalog = sum(found[False].values()), sum(found[True].values())
            time.sleep(USAGE_S)
