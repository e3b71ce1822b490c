# SPDX-License-Identifier: Apache-2.0
"""A loop over Eigen's products, as users of RTNeural write it: eigen_loop.cc."""

import ctypes

import native
from calls import Setting



def settings(_, context, problem, x, noise):
    return [Setting('', lambda: native.peer_call('eigen_loop', 'eigen_run', context.libraries,
                                                 problem, x, noise))]


def version(context):
    function = native.load_library('eigen_loop', context.libraries).eigen_version
    function.restype = ctypes.c_char_p
    return function().decode()
