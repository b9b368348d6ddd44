"""How the processes of a plain cluster meet, before JAX connects them.

JAX's own runtime ends a process without a sentence if another one never comes. So the first process listens at the coordinator's port until
all others have called and said their number; then it closes the door, tells everybody to go on, and JAX takes the same port. No jax here.
"""

import contextlib
import socket
import time

from spectral_ode.problem import BadInput

GO = b"go"


def meet(coordinator: str, processes: int, process: int, seconds: float) -> None:
    """Wait until all processes are there; raises `BadInput` if they are not within so many seconds."""
    host, _, port = coordinator.rpartition(":")
    end = time.monotonic() + seconds
    if process:
        _call(host.strip("[]"), int(port), process, end)
    else:
        _gather(int(port), processes, end)


def _gather(port: int, processes: int, end: float) -> None:
    """The first process: everybody calls and stays on the line until all are there."""
    try:
        both = socket.has_dualstack_ipv6()
        door = socket.create_server(("", port), family=socket.AF_INET6 if both else socket.AF_INET, dualstack_ipv6=both)
    except OSError as error:
        raise BadInput(f"port {port} of --coordinator cannot be used here ({error.strerror}); choose another one") from None
    callers: dict[int, socket.socket] = {}
    with contextlib.ExitStack() as lines:
        with door:
            while len(callers) < processes - 1:
                try:
                    door.settimeout(max(0.01, end - time.monotonic()))
                    line = lines.enter_context(door.accept()[0])
                    line.settimeout(max(0.01, end - time.monotonic()))
                    word = line.recv(16)
                except TimeoutError:
                    missing = sorted(set(range(1, processes)) - set(callers))
                    raise BadInput(
                        f"process {missing[0]} of --processes {processes} did not come in time; start all of them, or raise --timeout"
                    ) from None
                except OSError:
                    continue  # one that hung up
                if word.isdigit() and 0 < int(word) < processes:
                    callers[int(word)] = line
        for line in callers.values():
            with contextlib.suppress(OSError):
                line.sendall(GO)


def _call(host: str, port: int, process: int, end: float) -> None:
    """Another process: call until somebody answers, then wait for the word to go on."""
    while True:
        left = max(0.01, end - time.monotonic())
        try:
            with socket.create_connection((host, port), timeout=left) as line:
                line.sendall(str(process).encode())
                if line.recv(len(GO)) == GO:
                    return
                reason = "it hung up"
        except OSError as error:
            reason = error.strerror or str(error)
            if isinstance(error, socket.gaierror):
                end = 0.0
        if time.monotonic() > end:
            raise BadInput(f"--coordinator {host}:{port} cannot be reached ({reason}); start process 0 there, or raise --timeout")
        time.sleep(0.2)
