"""Runs a model file on this machine: only on the caller's thread, and with the same result for the same input."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnxruntime import InferenceSession


def open_session(content: bytes) -> InferenceSession:
    """Open a session for the content of an ONNX file, whose hash the caller has checked."""
    import onnxruntime  # noqa: PLC0415 - 50 MB and 0.2 s of every process that loads it

    onnxruntime.disable_telemetry_events()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # the caller's thread, so that its priority counts
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.use_deterministic_compute = True
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
