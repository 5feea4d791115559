# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A stand-in of TensorFlow Serving, Triton and vLLM: says in a line of JSON which options it got and how much GPU
memory CUDA shows, and then answers HTTP on its port, with the metrics of vLLM. Standard library only, because it is a
program of an image."""

import ctypes
import json
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

PORTS = ("--rest_api_port", "--http-port", "--port")


def total_mib() -> int | None:
    """What CUDA shows as the memory of the first GPU."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    context, free, total = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_uint64()
    cuda.cuInit(0)
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    cuda.cuCtxSetCurrent(context)
    cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    return total.value >> 20


class Answer(BaseHTTPRequestHandler):
    requests = 0
    """it claims to have answered 30 more, of less than 250 ms each, whenever its metrics are read"""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        if self.path == "/metrics":
            Answer.requests += 30
            for bound in ("0.25", "+Inf"):
                line = f'vllm:time_to_first_token_seconds_bucket{{le="{bound}",model_name="m"}} {Answer.requests}.0\n'
                self.wfile.write(line.encode())

    def log_message(self, *words: object) -> None:
        """Requests are not written: the output is one line."""


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # the first process of a container ignores it otherwise
    options = dict(word.partition("=")[::2] for word in sys.argv[1:])
    variables = {name: value for name, value in os.environ.items() if name.startswith("ALIYUN_")}
    print(json.dumps({"words": sys.argv[1:], "total_mib": total_mib(), "variables": variables}), flush=True)
    port = next(int(options[name]) for name in PORTS if name in options)
    HTTPServer(("", port), Answer).serve_forever()


if __name__ == "__main__":
    main()
