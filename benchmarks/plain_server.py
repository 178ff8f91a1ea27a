"""`python -m benchmarks.plain_server FILE.onnx SIDE THREADS`: the plainest server of a network, to compare with.

ONNX Runtime in the simplest handler of the framework that `us3l serve` uses: no queue, no batches, no limits.
"""

from __future__ import annotations

import io
import socket
import sys

import numpy as np
import onnxruntime
import uvicorn
from PIL import Image
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

MEAN, STD = np.array([0.485, 0.456, 0.406], np.float32), np.array([0.229, 0.224, 0.225], np.float32)


def main(path: str, side: int, threads: int) -> None:
    options = onnxruntime.SessionOptions()
    if threads:
        options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name

    async def embed(request: Request) -> Response:
        image = Image.open(io.BytesIO(await request.body())).convert("RGB").resize((side, side))
        pixels = (np.asarray(image, np.float32) / 255 - MEAN) / STD
        features = session.run(None, {name: np.ascontiguousarray(pixels.transpose(2, 0, 1)[None])})[0]
        return Response(features.tobytes(), media_type="application/octet-stream")

    listening = socket.socket(proto=socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    listening.listen(512)
    print(f"serving on http://127.0.0.1:{listening.getsockname()[1]}; Ctrl-C ends it")
    app = Starlette(routes=[Route("/embed", embed, methods=["POST"])])
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run([listening])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
