"""Post-training quantisation to INT8 by NNCF, for both formats; weights have a scale for each channel.

The settings are the simplest of those that kept features close to the float network's (docs/lab/export.md): ranges of
activations from the least to the greatest value seen, and no correction of biases. Depthwise convolutions stay in
float: they hold few of the weights, but most of the error.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from torch import Tensor

from us3l.system.optional import need

if TYPE_CHECKING:
    from nncf import IgnoredScope
    from onnx import ModelProto, NodeProto

BATCH = 10


def quantise_onnx(model: ModelProto, images: Tensor, transformer: bool) -> ModelProto:
    """An ONNX model in INT8 (QDQ), its ranges found on preprocessed images."""
    names = [node.name for node in model.graph.node if is_depthwise(node)]
    return quantise(model, images, transformer, need("nncf").IgnoredScope(names=names))


def quantise_openvino(model: Any, images: Tensor, transformer: bool) -> Any:
    """An OpenVINO model in INT8, its ranges found on preprocessed images."""
    left_in_float = need("nncf").IgnoredScope(types=["GroupConvolution"], validate=False)
    return quantise(model, images, transformer, left_in_float)


def quantise(model: Any, images: Tensor, transformer: bool, left_in_float: IgnoredScope) -> Any:
    nncf = need("nncf")
    ranges = need("nncf.quantization.range_estimator").RangeEstimatorParametersSet.MINMAX
    nncf.set_log_level(logging.ERROR)
    return nncf.quantize(
        model,
        nncf.Dataset([{"images": part.contiguous().numpy()} for part in images.split(BATCH)]),
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
