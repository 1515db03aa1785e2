"""What becomes of block files that nobody should have touched: damaged in place, exchanged, brought back, taken away."""

import os
import pathlib
import random
import re
import threading
import time

PAGE = 4_096
# Files in one go, and the pause behind it.
FILES, PAUSE_S = 10, 0.5
_NAMESPACE, _SHARD = re.compile("[0-9a-f]{64}"), re.compile("[0-9a-f]{3}")


class Damage:
    """Damages block files below `root` from `begin(how)` to `end()`. `made` counts the files."""

    def __init__(self, root, seed=1):
        self._root, self._random = pathlib.Path(root), random.Random(seed)
        self._thread, self._stops, self.made = None, threading.Event(), 0
        # Bytes that came back: nobody counts them until the directory is read anew.
        self.returned = 0

    def begin(self, how):
        self._stops.clear()
        self._thread = threading.Thread(target=self._go, args=(getattr(self, "_" + how),), daemon=True)
        self._thread.start()

    def end(self):
        self._stops.set()
        self._thread.join()

    def _go(self, damage):
        while not self._stops.is_set():
            for path in self._some(FILES):
                try:
                    damage(path)
                    self.made += 1
                except (OSError, ValueError):
                    # Evicted meanwhile, or too short.
                    pass
            self._stops.wait(PAUSE_S)

    def _some(self, count):
        """Block files, drawn."""
        found = []
        namespaces = [place for place in self._root.iterdir() if _NAMESPACE.fullmatch(place.name)]
        shards = [shard for place in namespaces for shard in place.iterdir() if _SHARD.fullmatch(shard.name)]
        for shard in self._random.sample(shards, min(count, len(shards))):
            files = sorted(shard.glob("*.blk"))
            if files:
                found.append(self._random.choice(files))
        return found

    def _other(self, path):
        others = [other for other in self._some(4) if other != path]
        if not others:
            raise ValueError("no other block")
        return others[0]

    def _flip(self, path):
        """One bit."""
        with path.open("r+b") as file:
            at = self._random.randrange(os.fstat(file.fileno()).st_size)
            file.seek(at)
            (byte,) = file.read(1)
            file.seek(at)
            file.write(bytes([byte ^ 1 << self._random.randrange(8)]))

    def _tear(self, path):
        """The end never reached the disk."""
        with path.open("r+b") as file:
            size = os.fstat(file.fileno()).st_size
            at = self._random.randrange(size // PAGE) * PAGE
            file.seek(at)
            file.write(bytes(size - at))

    def _lose(self, path):
        """Nothing reached the disk but the name."""
        with path.open("r+b") as file:
            file.write(bytes(os.fstat(file.fileno()).st_size))

    def _reorder(self, path):
        """Two pages in each other's place."""
        with path.open("r+b") as file:
            one, other = self._random.sample(range(os.fstat(file.fileno()).st_size // PAGE), 2)
            pages = [os.pread(file.fileno(), PAGE, at * PAGE) for at in (one, other)]
            os.pwrite(file.fileno(), pages[1], one * PAGE)
            os.pwrite(file.fileno(), pages[0], other * PAGE)

    def _misdirect(self, path):
        """Another block's bytes, written here."""
        content = self._other(path).read_bytes()
        with path.open("r+b") as file:
            file.write(content)

    def _duplicate(self, path):
        """Another block's file stands under this name as well."""
        other = self._other(path)
        path.unlink()
        os.link(other, path)

    def _exchange(self, path):
        """Two files under each other's name."""
        other, aside = self._other(path), self._root / "aside"
        path.rename(aside)
        other.rename(path)
        aside.rename(other)

    def _cut(self, path):
        """A read of it is short."""
        os.truncate(path, self._random.randrange(os.stat(path).st_size))

    def _bring_back(self, path):
        """What was evicted long ago, or written anew meanwhile, is there again as it was."""
        content = path.read_bytes()
        path.unlink()
        time.sleep(PAUSE_S)
        path.write_bytes(content)
        self.returned += len(content)

    def _take_away(self, path):
        path.unlink()
