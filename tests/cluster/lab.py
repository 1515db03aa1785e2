"""What the scripts beside this one are made of: a server, a proxy, nodes that replay, and what they reported."""

import atexit
import hashlib
import hmac
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
ACCESS_KEY, SECRET_KEY = "terrace", "terrace-secret"
_children: list[subprocess.Popen] = []


def say(text):
    print(f"== {text}", file=sys.stderr, flush=True)


def refuse(why):
    """Says loudly that nothing was tried."""
    print(f"*** NOT RUN: {why} ***", file=sys.stderr)
    sys.exit(1)


def binary(variable, name):
    path = os.environ.get(variable)
    if not path or not os.access(path, os.X_OK):
        refuse(f"{variable} must name the binary {name}")
    return path


def trace():
    shared = pathlib.Path(os.environ.get("TERRACE_SHARED", ROOT / "../shared"))
    path = shared / "traces/mooncake_conversation.jsonl.zst"
    if not path.is_file():
        refuse(f"no {path}")
    return path


def place():
    """A directory that is gone at the end."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="terrace-cluster-", dir=os.environ.get("TERRACE_CLUSTER_DIR")))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    # Behind the processes that write there: what is registered last runs first.
    atexit.register(_end_all)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    return path


def _end_all():
    for child in _children:
        if child.poll() is None:
            child.kill()
            child.wait()


def spawn(command, **arguments):
    child = subprocess.Popen([str(word) for word in command], **arguments)
    _children.append(child)
    return child


class Server:
    """A real S3 server in a directory, with a bucket. `kind` is a script: seaweedfs or ceph."""

    def __init__(self, directory, port, address="127.0.0.1", kind="seaweedfs", bucket="cluster"):
        self.port, self.address, self.bucket, self.kind = port, address, bucket, kind
        self.directory, self.pid = pathlib.Path(directory), 0
        atexit.register(self.end)
        self.again()
        create_bucket(self.endpoint, bucket)

    def again(self):
        """Starts it, with what it had; also what a kill of one process of several has left."""
        if self.kind == "ceph":
            subprocess.run([ROOT / "scripts/ceph", "--stop", self.directory], check=True)
        out = subprocess.run([ROOT / "scripts" / self.kind, self.directory, str(self.port)],
                             env={**os.environ, "TERRACE_S3_BIND": self.address}, stdout=subprocess.PIPE, check=True, text=True)
        self.pid = int(out.stdout)

    @property
    def endpoint(self):
        return f"http://{self.address}:{self.port}"

    def stop(self):
        """Connections are taken by the kernel and nobody answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self):
        os.kill(self.pid, signal.SIGCONT)

    def end(self):
        if self.kind == "ceph":
            subprocess.run([ROOT / "scripts/ceph", "--stop", self.directory], check=False)
            return
        if not self.pid:
            return
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        while os.path.exists(f"/proc/{self.pid}"):
            time.sleep(0.01)


def create_bucket(endpoint, bucket):
    """Creates it; one that is there is kept. Signed by hand (AWS Signature Version 4): curl's signature lacks what Ceph asks for."""
    now, host, empty = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()), endpoint.split("://")[1], hashlib.sha256(b"").hexdigest()
    headers = {"host": host, "x-amz-content-sha256": empty, "x-amz-date": now}
    signed, scope = ";".join(headers), f"{now[:8]}/us-east-1/s3/aws4_request"
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    request = hashlib.sha256(f"PUT\n/{bucket}\n\n{lines}\n{signed}\n{empty}".encode()).hexdigest()
    key = f"AWS4{SECRET_KEY}".encode()
    for part in [*scope.split("/"), f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{request}"]:
        key = hmac.digest(key, part.encode(), "sha256")
    authorization = f"AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/{scope}, SignedHeaders={signed}, Signature={key.hex()}"
    sent = urllib.request.Request(f"{endpoint}/{bucket}", method="PUT", headers={**headers, "authorization": authorization})
    for left in reversed(range(20)):
        try:
            urllib.request.urlopen(sent, timeout=10).close()
            return
        except urllib.error.HTTPError as error:
            # It is there.
            if error.code == 409:
                return
            if not left:
                sys.exit(f"no bucket: {error} {error.read()!r}")
        except OSError as error:
            if not left:
                sys.exit(f"no bucket: {error}")
        time.sleep(0.5)


class Proxy:
    """terrace-s3-proxy before a server."""

    def __init__(self, server, port, seed=7):
        command = [binary("TERRACE_S3_PROXY", "terrace-s3-proxy"), "--listen", f"{server.address}:{port}", "--upstream",
                   f"{server.address}:{server.port}", "--seed", str(seed)]
        self.endpoint, self.bucket = f"http://{server.address}:{port}", server.bucket
        self.process = spawn(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.process.stderr.readline()

    def tell(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def counts(self):
        self.tell("counts")
        return json.loads(self.process.stdout.readline())

    def end(self):
        """Its last counts."""
        out, _ = self.process.communicate("quit\n")
        return json.loads(out.splitlines()[-1])


def config(blocks, block_bytes, tier="", tables=""):
    """A configuration; `tier`: text of an object tier, or nothing."""
    return f"[primary]\nblocks = {blocks}\n[geometry]\nblock_bytes = {block_bytes}\n{tables}\n{tier}"


def object_tier(endpoint, bucket, prefix, keys=""):
    return (f'[[tier]]\ntype = "object"\nurl = "s3://{bucket}/{prefix}"\nendpoint = "{endpoint}"\ncapacity = "64GiB"\n'
            f'credentials = "environment"\n{keys}\n')


class Node:
    """A replay in a process of its own; `before` goes before its command, as `ip netns exec NAME`."""

    def __init__(self, directory, name, text, arguments, before=()):
        self.name, base = name, pathlib.Path(directory)
        self.paths = {kind: base / f"{name}.{kind}" for kind in ("toml", "json", "log", "samples")}
        self.paths["toml"].write_text(text)
        # Without a word a replay has an NVMe tier of its own.
        nvme = [] if '"nvme"' in text else ["--nvme-blocks", "0"]
        command = [*before, binary("TERRACE_BIN", "terrace"), "replay", "--json", "--config", self.paths["toml"], "--gpu-prefix-cache",
                   "off", *nvme, "--samples", self.paths["samples"], "--trace", trace(), *arguments]
        environment = {**os.environ, "AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
        self.process = spawn(command, stdin=subprocess.DEVNULL, stdout=self.paths["json"].open("w"),
                             stderr=self.paths["log"].open("w"), env=environment)

    def runs(self):
        return self.process.poll() is None

    def stop(self):
        """It takes no more requests, and ends those that it has."""
        self.process.send_signal(signal.SIGTERM)

    def samples(self):
        """What it counted so far, four times a second."""
        lines = self.paths["samples"].read_text().splitlines() if self.paths["samples"].exists() else []
        found = []
        for line in lines:
            try:
                found.append(json.loads(line))
            except ValueError:
                # The last one, half written.
                break
        return found

    def last(self):
        samples = self.samples()
        return samples[-1] if samples else None

    def end(self, within=1800):
        """Its report. A status that is not 0 shows the log."""
        status = self.process.wait(within)
        text = self.paths["json"].read_text()
        if not text or status not in (0, 1):
            sys.exit(f"node {self.name} ended with {status}:\n{self.paths['log'].read_text()}")
        if status:
            say(f"node {self.name} ended with {status}:\n{self.paths['log'].read_text()[-2000:]}")
        return {**json.loads(text), "status": status}


def until(what, condition, within=120):
    """Waits until it is so; the end of the script if it never is."""
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"waited {within} s in vain: {what}")
        time.sleep(0.1)


def between(samples, start, end):
    """What happened from `start` to `end` (seconds since 1970), as far as samples lie there."""
    inside = [sample for sample in samples if start <= sample["unix_s"] <= end]
    if len(inside) < 2:
        return {"requests": 0, "seconds": 0.0}
    first, last = inside[0], inside[-1]
    seconds, looked_up = last["unix_s"] - first["unix_s"], last["blocks_looked_up"] - first["blocks_looked_up"]
    grew = lambda *path: _at(last, path) - _at(first, path)
    return {"seconds": round(seconds, 1), "requests": grew("requests"), "requests_per_s": round(grew("requests") / max(seconds, 1e-9), 1),
            "blocks": looked_up, "hit_ratio": round((grew("hits", "primary") + grew("hits", "nvme")) / max(looked_up, 1), 4),
            "hits_dram": grew("hits", "primary"), "hits_bucket": grew("hits", "nvme"), "wrong_blocks": grew("wrong_blocks"),
            "stored": grew("tiers", 0, "stored"), "loaded": grew("tiers", 0, "loaded")}


def _at(value, path):
    for step in path:
        value = value[step] if not isinstance(value, list) or step < len(value) else {}
    return value if isinstance(value, (int, float)) else 0


def at_the_server(counts):
    """Requests by operation, of them those to segments and to the log."""
    answer = {name: count["requests"] for name, count in counts["operations"].items()}
    for place_, operations in counts["places"].items():
        for name, count in operations.items():
            for kind in ("segments", "log"):
                if f"/{kind}/" in place_:
                    key = f"{name}_{kind}"
                    answer[key] = answer.get(key, 0) + count["requests"]
    return answer


def promises(checks):
    """The names of those that were broken."""
    return [name for name, kept in checks.items() if not kept]
