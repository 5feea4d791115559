# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A stand-in of TensorFlow Serving and Triton: says in a line of JSON which options it got and how much GPU memory CUDA
shows, and then answers HTTP on its port. Standard library only, because it is a program of an image."""

import ctypes
import json
import os
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

PORTS = ("--rest_api_port", "--http-port")


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
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()


def main() -> None:
    options = dict(word.partition("=")[::2] for word in sys.argv[1:])
    variables = {name: value for name, value in os.environ.items() if name.startswith("ALIYUN_")}
    print(json.dumps({"words": sys.argv[1:], "total_mib": total_mib(), "variables": variables}), flush=True)
    port = next(int(options[name]) for name in PORTS if name in options)
    HTTPServer(("", port), Answer).serve_forever()


if __name__ == "__main__":
    main()
