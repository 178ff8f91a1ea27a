"""Post-training quantisation to INT8, by the libraries of the formats; weights have a scale for each channel.

The settings are those that kept features closest to the float network's in `benchmarks/export_proof.py`: ranges of
activations from the least to the greatest value seen, no correction of biases, and in transformers only the layers
with weights. OpenVINO's depthwise convolutions stay in float: they hold few of the weights, but most of the error.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

BATCH = 10


def quantise_onnx(source: Path, target: Path, images: Tensor, transformer: bool) -> None:
    """Write an ONNX file with QDQ nodes, its ranges found on preprocessed images."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.batches = batches(images)

        def get_next(self) -> dict[str, np.ndarray] | None:
            batch = next(self.batches, None)
            return None if batch is None else {"images": batch}

    prepared = source.with_name("prepared.onnx")
    quant_pre_process(source, prepared, skip_symbolic_shape=True)
    quantize_static(
        prepared,
        target,
        Reader(),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QUInt8,  # with signed weights, what x86's fast instructions take
        weight_type=QuantType.QInt8,
        op_types_to_quantize=["Conv", "Gemm", "MatMul"] if transformer else None,
    )


def quantise_openvino(model: Any, images: Tensor, transformer: bool) -> Any:
    """An OpenVINO model in INT8, its ranges found on preprocessed images."""
    import nncf
    from nncf.quantization.range_estimator import RangeEstimatorParametersSet

    nncf.set_log_level(logging.ERROR)
    return nncf.quantize(
        model,
        nncf.Dataset(list(batches(images))),
        preset=nncf.QuantizationPreset.MIXED,  # activations need not be symmetric
        subset_size=len(images),
        ignored_scope=nncf.IgnoredScope(types=["GroupConvolution"], validate=False),
        model_type=nncf.ModelType.TRANSFORMER if transformer else None,
        advanced_parameters=nncf.AdvancedQuantizationParameters(
            activations_range_estimator_params=RangeEstimatorParametersSet.MINMAX, disable_bias_correction=True
        ),
    )


def batches(images: Tensor) -> Iterator[np.ndarray]:
    return (part.contiguous().numpy() for part in images.split(BATCH))
