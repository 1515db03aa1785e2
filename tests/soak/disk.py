"""A disk that is made sick by hand: a file, served by nbdkit, seen as a file by nbdfuse, as a block device by loop, as ext4 by everybody else.

All of it goes through the kernel's own block layer, with O_DIRECT and io_uring as on any disk. It needs root, /dev/fuse, a free loop device and
the Debian packages nbdkit, libnbd-bin, fuse3 and e2fsprogs (`scripts/packages`).
"""

import atexit
import os
import pathlib
import socket
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/cluster"))
import lab  # noqa: E402

PACKAGES = ("nbdkit", "libnbd-bin", "fuse3", "e2fsprogs")


def _run(*command, **arguments):
    return subprocess.run([str(word) for word in command], check=True, text=True, **arguments)


class Disk:
    """`megabytes` large, mounted at `self.path`. Nothing of it is left at the end. One that `forgets` has a cache of writes that `lose_power` empties."""

    def __init__(self, place, megabytes, forgets=False):
        if os.geteuid() != 0:
            lab.refuse("a sick disk needs root: loop devices and mounts")
        if not os.access("/dev/fuse", os.W_OK):
            lab.refuse("a sick disk needs /dev/fuse")
        _run(ROOT / "scripts/packages", *PACKAGES)
        self._place = pathlib.Path(place)
        self._place.mkdir(parents=True)
        self.path, self._socket, self._served = self._place / "mounted", self._place / "nbd.sock", self._place / "served"
        self._device, self._ballast, self._forgets = None, self.path / "ballast", forgets
        self._server = self._fuse = None
        self._fails, self._rate, self._pause = self._place / "fails", self._place / "rate", self._place / "pause.sock"
        self._image = self._place / "image"
        with self._image.open("wb") as file:
            file.truncate(megabytes << 20)
        self._rate.write_text("0\n")
        self._served.touch()
        self.path.mkdir()
        # The file system has lost writes of its own: names that were removed may be back, and what was made may be gone, until it is mounted anew.
        self.is_damaged = False
        self._log = (self._place / "log").open("w")
        atexit.register(self.end)
        self._attach()
        # Without a journal an error of the device does not remount it read-only, which is a fault of its own here.
        _run("mkfs.ext4", "-q", "-F", "-O", "^has_journal", "-m", "0", "-E", "lazy_itable_init=0", self._device)
        _run("mount", "-o", "errors=continue", self._device, self.path)

    def _attach(self):
        # The order is the way of a request: a pause holds it before anything else does.
        filters = [f"--filter={name}" for name in ("pause", "error", "rate", *(["cache"] if self._forgets else []))]
        self._server = lab.spawn(
            ["nbdkit", "--foreground", "--unix", self._socket, *filters, "file", self._image, "error=EIO", "error-rate=100%",
             f"error-file={self._fails}", f"rate-file={self._rate}", f"pause-control={self._pause}", *(["cache=writeback"] if self._forgets else [])],
            stderr=self._log)
        lab.until("nbdkit", self._socket.exists)
        self._fuse = lab.spawn(["nbdfuse", self._served, "--unix", self._socket], stderr=self._log)
        lab.until("nbdfuse", lambda: self._served.stat().st_size)
        self._device = _run("losetup", "--direct-io=on", "--find", "--show", self._served, stdout=subprocess.PIPE).stdout.strip()

    def _detach(self):
        for command in (["umount", "--lazy", self.path], *([["losetup", "--detach", self._device]] if self._device else []),
                        ["fusermount3", "-u", "-z", self._served]):
            subprocess.run([str(word) for word in command], check=False, stderr=subprocess.DEVNULL)
        for child in (self._fuse, self._server):
            if child and child.poll() is None:
                child.kill()
                child.wait()

    def lose_power(self):
        """What was written since the last flush is gone, as far as the disk had not got round to it. Nobody may have a file of it open."""
        self._server.kill()
        self._server.wait()
        self._detach()
        self._socket.unlink(missing_ok=True), self._pause.unlink(missing_ok=True)
        self._attach()
        self._mount_anew()

    def _mount_anew(self):
        # What the file system lost is found out by looking; without a journal that is much.
        subprocess.run(["e2fsck", "-f", "-y", self._device], check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _run("mount", "-o", "errors=continue", self._device, self.path)
        self.is_damaged = False

    def fail(self, fails=True):
        """Every operation of the device ends with EIO, or none any more."""
        if fails:
            self._fails.touch()
            self.is_damaged = True
        else:
            self._fails.unlink(missing_ok=True)

    def hang(self, hangs=True):
        """Nothing is answered any more, or everything is again, what waited first."""
        with socket.socket(socket.AF_UNIX) as control:
            control.connect(str(self._pause))
            control.sendall(b"p" if hangs else b"r")
            control.recv(1)

    def slow(self, bytes_per_second=0):
        """The device does so much a second; 0: what it can."""
        self._rate.write_text(f"{bytes_per_second * 8}\n")

    def fill(self, full=True):
        """No room is left in the file system, or what was taken is given back."""
        if not full:
            return self._ballast.unlink(missing_ok=True)
        room = os.statvfs(self.path)
        # Of what somebody takes meanwhile the last attempts have less.
        size = room.f_bavail * room.f_frsize
        with self._ballast.open("ab") as file:
            while size >= 4096:
                try:
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, size)
                except OSError:
                    size //= 2

    def break_into_read_only(self):
        """ext4 finds a fault in itself and turns read-only at once, busy as it is. Only `repair` ends that."""
        _run("mount", "-o", "remount,errors=remount-ro", self.path)
        pathlib.Path(f"/sys/fs/ext4/{pathlib.Path(self._device).name}/trigger_fs_error").write_text("broken by hand")

    def repair(self):
        """Mounted anew. Nobody may have a file of it open."""
        _run("umount", self.path)
        self._mount_anew()

    def free_bytes(self):
        room = os.statvfs(self.path)
        return room.f_bfree * room.f_frsize

    def end(self):
        if self._server and self._server.poll() is None:
            self.fail(False)
            self.slow()
            try:
                self.hang(False)
            except OSError:
                pass
        self._detach()
