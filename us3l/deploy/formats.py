"""The file formats: how a plain network is written in each, with what is known about it as metadata."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from io import BytesIO, StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from warnings import catch_warnings, simplefilter

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx.experimental.optimization import fuse
from torch.fx.proxy import TraceError

from us3l.run.bundles import Format
from us3l.storage import write_tensors
from us3l.system.optional import need
from us3l.system.streams import one_line
from us3l.tensors import batch_norms

if TYPE_CHECKING:
    from nncf import IgnoredScope
    from onnx import ModelProto, NodeProto

KEY = "us3l"  # of the metadata, a JSON text, in every format
CALIBRATION_BATCH = 10
EXECUTORCH_BATCH = 8  # it plans its memory ahead, for the largest batch


@dataclass(frozen=True)
class Kind:
    """A format: the endings of its files, the one to open first, and how to write them from that one's path."""

    suffixes: tuple[str, ...]
    write: Callable[[nn.Module, int, Path, str], None]
    graph: int
    """Bytes that the description of a graph may take beside the weights."""
    write_int8: Callable[[nn.Module, int, Path, str, Tensor, bool], None] | None = None
    """The same, with images to calibrate on, and whether the network is a transformer."""


def fold(network: nn.Module) -> nn.Module:
    """The same function with each batch norm in the convolution before it.

    A network whose code cannot be traced stays as it is: the runtimes fold what they read.
    """
    if not batch_norms(network):
        return network
    try:
        return fuse(network)
    except (TraceError, TypeError, RuntimeError):
        return network


def program_of(network: nn.Module, size: int, batch: Any = Dim.DYNAMIC) -> ExportedProgram:
    images = torch.zeros(2, 3, size, size)
    return torch.export.export(fold(network), (images,), dynamic_shapes=({0: batch},))


def write_torch(network: nn.Module, size: int, path: Path, about: str) -> None:
    program = program_of(network, size)
    program.example_inputs = None  # two images would go along
    for node in program.graph.nodes:
        for note in ("stack_trace", "from_node"):  # paths and addresses, which differ from one export to the next
            node.meta.pop(note, None)
    buffer = BytesIO()  # where a file cannot be written, torch's own writer ends the process
    torch.export.save(program, buffer, extra_files={f"{KEY}.json": about})
    path.write_bytes(buffer.getbuffer())


def write_safetensors(network: nn.Module, _: int, path: Path, about: str) -> None:
    """The state dict of the plain network, batch norm and all, to be trained further or rebuilt elsewhere."""
    write_tensors(path, network.state_dict(), {KEY: about})


def write_onnx(network: nn.Module, size: int, path: Path, about: str) -> None:
    save_onnx(onnx_model(network, size), path, about)


def write_onnx_int8(network: nn.Module, size: int, path: Path, about: str, images: Tensor, transformer: bool) -> None:
    model = onnx_model(network, size)
    with quiet():
        save_onnx(quantise_onnx(model, images, transformer), path, about)


def onnx_model(network: nn.Module, size: int) -> Any:
    need("onnx")
    need("onnxscript")
    with quiet():
        exported = torch.onnx.export(
            fold(network),
            (torch.zeros(2, 3, size, size),),
            dynamo=True,
            input_names=["images"],
            output_names=["outputs"],
            dynamic_shapes=({0: "batch"},),
            verbose=False,
        )
    assert exported is not None
    return exported.model_proto


def save_onnx(model: Any, path: Path, about: str) -> None:
    """Without the exporter's notes, which hold paths of this machine and may outweigh a small network."""
    onnx, graph = need("onnx"), model.graph
    for part in (graph, *graph.node, *graph.initializer, *graph.input, *graph.output):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    graph.ClearField("value_info")
    if about:
        onnx.helper.set_model_props(model, {KEY: about})
    onnx.save(model, path)


def write_openvino(network: nn.Module, size: int, path: Path, about: str) -> None:
    save_openvino(openvino_model(network, size, path), path, about)


def write_openvino_int8(
    network: nn.Module, size: int, path: Path, about: str, images: Tensor, transformer: bool
) -> None:
    model = openvino_model(network, size, path)
    with quiet():
        save_openvino(quantise_openvino(model, images, transformer), path, about)


def openvino_model(network: nn.Module, size: int, path: Path) -> Any:
    """By way of ONNX: its graph is the smaller one, and keeps the size of the images."""
    openvino = need("openvino")
    with TemporaryDirectory(dir=path.parent) as scratch:
        source = Path(scratch) / "network.onnx"
        write_onnx(network, size, source, "")
        return openvino.convert_model(source)


def save_openvino(model: Any, path: Path, about: str) -> None:
    for number, operation in enumerate(model.get_ordered_ops()):
        kind = operation.get_type_name()
        if kind in ("Constant", "Convert"):  # else named by a counter of the process
            operation.set_friendly_name(f"{kind}_{number}")
    model.set_rt_info(about, [KEY])
    try:
        need("openvino").save_model(model, path, compress_to_fp16=False)
    except RuntimeError as error:  # it does not say why
        raise OSError(f"is the disk full? (OpenVINO: {one_line(str(error)):.100})") from None


def write_executorch(network: nn.Module, size: int, path: Path, about: str) -> None:
    """For phones, on the XNNPACK backend."""
    exir = need("executorch.exir")
    xnnpack = need("executorch.backends.xnnpack.partition.xnnpack_partitioner")
    program = program_of(network, size, Dim("batch", min=1, max=EXECUTORCH_BATCH))
    with quiet():
        lowered = exir.to_edge_transform_and_lower(
            program, partitioner=[xnnpack.XnnpackPartitioner()], constant_methods={KEY: about}
        )
    path.write_bytes(lowered.to_executorch().buffer)


@contextmanager
def quiet() -> Iterator[None]:
    """Without the libraries' progress bars and advice on their own workings, which a user of ours cannot follow."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with catch_warnings(), redirect_stdout(StringIO()):
            simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def quantise_onnx(model: ModelProto, images: Tensor, transformer: bool) -> ModelProto:
    """An ONNX model in INT8 (QDQ), its ranges found on preprocessed images."""
    names = [node.name for node in model.graph.node if is_depthwise(node)]
    return quantise(model, images, transformer, need("nncf").IgnoredScope(names=names))


def quantise_openvino(model: Any, images: Tensor, transformer: bool) -> Any:
    """An OpenVINO model in INT8, its ranges found on preprocessed images."""
    left_in_float = need("nncf").IgnoredScope(types=["GroupConvolution"], validate=False)
    return quantise(model, images, transformer, left_in_float)


def quantise(model: Any, images: Tensor, transformer: bool, left_in_float: IgnoredScope) -> Any:
    """Return the model in INT8, by NNCF after training; weights have a scale per channel.

    The settings are the simplest of those that kept features close to the float network's (docs/lab/export.md): ranges
    of activations from the least to the greatest value seen, and no correction of biases. Depthwise convolutions stay
    in float: they hold few of the weights, but most of the error.
    """
    nncf = need("nncf")
    ranges = need("nncf.quantization.range_estimator").RangeEstimatorParametersSet.MINMAX
    nncf.set_log_level(logging.ERROR)
    return nncf.quantize(
        model,
        nncf.Dataset([{"images": part.contiguous().numpy()} for part in images.split(CALIBRATION_BATCH)]),
        preset=nncf.QuantizationPreset.MIXED,  # activations need not be symmetric
        subset_size=len(images),
        ignored_scope=left_in_float,
        model_type=nncf.ModelType.TRANSFORMER if transformer else None,
        advanced_parameters=nncf.AdvancedQuantizationParameters(
            activations_range_estimator_params=ranges, disable_bias_correction=True
        ),
    )


def is_depthwise(node: NodeProto) -> bool:
    return node.op_type == "Conv" and any(given.name == "group" and given.i > 1 for given in node.attribute)


KINDS: dict[Format, Kind] = {
    "torch": Kind((".pt2",), write_torch, graph=1_000_000),
    "safetensors": Kind((".safetensors",), write_safetensors, graph=64_000),
    "onnx": Kind((".onnx",), write_onnx, graph=64_000, write_int8=write_onnx_int8),
    "openvino": Kind((".xml", ".bin"), write_openvino, graph=64_000, write_int8=write_openvino_int8),
    "executorch": Kind((".pte",), write_executorch, graph=250_000),
}
