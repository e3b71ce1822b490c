# SPDX-License-Identifier: Apache-2.0
"""The structures of kernels/c_api/deeppcr.h for ctypes. Arrays are addresses."""

import ctypes


class EngineOptions(ctypes.Structure):
    _fields_ = [('struct_size', ctypes.c_size_t), ('backend', ctypes.c_char_p),
                ('num_threads', ctypes.c_int32), ('max_concurrent_runs', ctypes.c_int32),
                ('plan_cache_dir', ctypes.c_char_p), ('plan_mode', ctypes.c_int32),
                ('max_model_bytes', ctypes.c_int64), ('max_workspace_bytes', ctypes.c_int64),
                ('max_unplanned_bytes', ctypes.c_int64), ('progress', ctypes.c_void_p),
                ('progress_user', ctypes.c_void_p)]


class RunOptions(ctypes.Structure):
    _fields_ = [('struct_size', ctypes.c_size_t), ('solver', ctypes.c_char_p),
                ('rtol', ctypes.c_double), ('atol', ctypes.c_double),
                ('max_iterations', ctypes.c_int32), ('shooting_interval', ctypes.c_int32),
                ('warm_sweeps', ctypes.c_int32), ('initial_guess', ctypes.c_int32),
                ('jacobian_refresh', ctypes.c_int32), ('on_no_convergence', ctypes.c_int32),
                ('num_inference_steps', ctypes.c_int64), ('timeout_seconds', ctypes.c_double),
                ('token', ctypes.c_void_p)]


class Inputs(ctypes.Structure):
    _fields_ = [('struct_size', ctypes.c_size_t), ('num_samples', ctypes.c_int64),
                ('inputs', ctypes.c_void_p), ('initial_states', ctypes.c_void_p),
                ('seed', ctypes.c_uint64), ('first_sample', ctypes.c_uint64),
                ('class_labels', ctypes.c_void_p), ('initial_noise', ctypes.c_void_p),
                ('step_noise', ctypes.c_void_p)]


class Report(ctypes.Structure):
    _fields_ = [('solver', ctypes.c_char_p), ('termination', ctypes.c_char_p),
                *((name, ctypes.c_int32) for name in
                  ('converged', 'fallback', 'iterations', 'chord_corrections', 'confirmations',
                   'warm_sweeps')),
                ('dependent_stages', ctypes.c_int64), ('column_passes', ctypes.c_int64),
                *((name, ctypes.c_double) for name in
                  ('error_estimate', 'output_error_estimate', 'rounding_estimate',
                   'last_update')),
                ('attempt_solver', ctypes.c_char_p), ('attempt_termination', ctypes.c_char_p)]


class Outputs(ctypes.Structure):
    _fields_ = [('struct_size', ctypes.c_size_t), ('outputs', ctypes.c_void_p),
                ('final_states', ctypes.c_void_p), ('trajectory', ctypes.c_void_p),
                ('reports', ctypes.c_void_p), ('report_size', ctypes.c_size_t),
                ('seconds', ctypes.c_double)]


def sized(kind, **fields):
    return kind(struct_size=ctypes.sizeof(kind), **fields)
