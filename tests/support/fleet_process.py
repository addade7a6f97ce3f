"""A host in a process of its own: reads commands as lines of JSON, answers in the same way.

``python -m support.fleet_process ABOUT``: JSON with a port, a folder, a name, options of ``Guard`` and ``cluster``.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path


class Host:
    """The parent's side."""

    def __init__(self, port, folder, name="fleet", **options):
        here = Path(__file__).parent.parent
        arguments = [json.dumps({"port": port, "folder": str(folder), "name": name, "options": options})]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "support.fleet_process", *arguments],
            cwd=here,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def send(self, *command):
        """Give a command; `receive` has its answer."""
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def receive(self):
        line = self.process.stdout.readline()
        if not line:
            raise EOFError("the host has ended")
        return json.loads(line)

    def call(self, *command):
        self.send(*command)
        return self.receive()

    def stop(self):
        """Let it do nothing, as if its machine were stopped."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)

    def kill(self):
        """End it at once; a second time nothing happens."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.kill()


def serve(about):
    import redis

    from dlbf.storage import Guard
    from dlbf.storage.engines.redis import RedisEngine
    from dlbf.storage.logs import FleetError, ValkeyLog

    def client():
        if about["options"].get("cluster"):
            return redis.RedisCluster(host="127.0.0.1", port=about["port"])
        return redis.Redis(port=about["port"])

    options = dict(about["options"])
    log = ValkeyLog(client(), about["name"])
    options.pop("cluster", None)
    if "secret" in options:
        options["secret"] = options["secret"].encode()
    guard = Guard(RedisEngine(client()), about["folder"], log=log, **options)
    print(json.dumps(guard.state), flush=True)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        if name == "put":
            guard.put(arguments[0], b"v")
            answer = True
        elif name == "put_all":  # until it is killed, or told a number; tells each that is stored
            for i in range(arguments[1]):
                try:
                    guard.put(f"{arguments[0]}{i}", b"v")
                    print(json.dumps(i), flush=True)
                except FleetError as error:
                    print(json.dumps(str(error)), flush=True)
            answer = "end"
        elif name == "absent":  # those of some keys that are denied
            answer = [key for key in arguments[0] if guard.get(key) is None]
        elif name == "delete":
            answer = guard.delete(arguments[0])
        elif name == "filtered":
            answer = guard.stats().filtered
        elif name == "state":
            answer = guard.state
        else:
            assert name == "exit"
            os._exit(0)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
