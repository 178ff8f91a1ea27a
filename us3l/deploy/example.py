"""Run a network that `us3l export` wrote on a photo. Copy from here: it needs numpy, Pillow and the file's own runtime
(onnxruntime, openvino, torch or executorch), but not us3l.

    python example.py resnet18-0.37x.onnx photo.jpg
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

About = dict[str, Any]
Run = Callable[[np.ndarray], np.ndarray]


def open_onnx(path: Path) -> tuple[About, Run]:
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # else it reports its use, and keeps an id in the home folder
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    about = session.get_modelmeta().custom_metadata_map["us3l"]
    return json.loads(about), lambda images: session.run(None, {"images": images})[0]


def open_openvino(path: Path) -> tuple[About, Run]:
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # else it reports its use
    import openvino

    core = openvino.Core()
    model = core.read_model(path)
    # Else processors that have bfloat16 would round to it.
    compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return json.loads(model.get_rt_info(["us3l"]).astype(str)), lambda images: compiled(images)[0]


def open_torch(path: Path) -> tuple[About, Run]:
    import torch

    extra = {"us3l.json": ""}
    program = torch.export.load(path, extra_files=extra).module()
    return json.loads(extra["us3l.json"]), lambda images: program(torch.from_numpy(images)).detach().numpy()


def open_executorch(path: Path) -> tuple[About, Run]:
    """At most 8 images at a time."""
    import torch
    from executorch.runtime import Runtime

    program = Runtime.get().load_program(path)
    forward = program.load_method("forward")
    about = program.load_method("us3l").execute([])[0]
    return json.loads(about), lambda images: forward.execute([torch.from_numpy(images)])[0].numpy().copy()


OPENERS = {".onnx": open_onnx, ".xml": open_openvino, ".pt2": open_torch, ".pte": open_executorch}


def preprocess(photo: Path, about: About) -> np.ndarray:
    """The centre of a photo, as the network's input: 1 x 3 x size x size."""
    wanted = about["preprocessing"]
    size, resize = wanted["size"], wanted["resize"]
    square = read(photo, resize).astype(np.float32) / 255
    edge = (resize - size) // 2
    centre = square[edge : edge + size, edge : edge + size]
    normalised = (centre - np.float32(wanted["mean"])) / np.float32(wanted["std"])
    return np.ascontiguousarray(normalised.transpose(2, 0, 1)[None])


def read(photo: Path, side: int) -> np.ndarray:
    """The square centre of a photo, upright and in RGB: side x side x 3, uint8. The pixels are those of training."""
    from PIL import Image, ImageOps

    image: Any = Image.open(photo)
    image.draft(None, (2 * side, 2 * side))  # large JPEGs are decoded at a fraction of their size
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):  # 16 bits a pixel
        image = Image.fromarray(((np.asarray(image, np.int32).clip(0, 65535) + 128) // 257).astype(np.uint8))
    if "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    edge = min(image.size)
    left, top = ((length - edge) // 2 for length in image.size)
    square = image.convert("RGB").crop((left, top, left + edge, top + edge))
    return np.asarray(square.resize((side, side), Image.Resampling.BILINEAR))


if __name__ == "__main__":
    network, photo = map(Path, sys.argv[1:])
    about, run = OPENERS[network.suffix](network)
    outputs = run(preprocess(photo, about))[0]
    if about.get("classes"):
        print(about["classes"][outputs.argmax()])
    else:
        print(outputs.tolist())
