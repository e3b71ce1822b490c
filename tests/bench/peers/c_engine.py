# SPDX-License-Identifier: Apache-2.0
"""The plain C loop as a candidate, and what only reads the weights."""

import native
from calls import NotOffered, Setting

BYTES = 'reads the weights only'
LIBRARY_OF = {'plain': 'c_loop', '-ffast-math': 'c_loop_fast'}


def settings(candidate, context, problem, x, noise):
    if candidate == BYTES:
        if problem.kind == 'stack' or len(x) > 1:
            raise NotOffered('of diffusion models, one sample')
        return [Setting('', lambda: native.weight_bytes(context.libraries, problem, x))]
    return [Setting('', lambda: native.c_loop(context.libraries, problem, x, noise,
                                              LIBRARY_OF[candidate]))]


def version(_):
    return native.compiler_version()
