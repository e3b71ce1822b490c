#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What people write who have no server: gRPC for Python, a pool of threads, the network in PyTorch,
as the loop with the fewest steps in Python that eager mode allows.

Answers ModelInfer of the KServe v2 protocol for one model of the repository; rpc_bench measures it
beside ours. The request's samples are one batch; nothing waits to be batched with others.
"""

import argparse
import concurrent.futures
import json
import pathlib
import signal
import subprocess
import sys
import tempfile

import torch_ladder  # must come first: it sets one thread for each request

import grpc
import numpy as np
import torch

import safetensors_file


def import_messages():
    """The messages of the protocol, as protoc makes them."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(['protoc', f'--proto_path={torch_ladder.ROOT}/proto/inference',
                        f'--python_out={folder}', 'grpc_service.proto'], check=True)
        sys.path.insert(0, folder)
        import grpc_service_pb2  # pylint: disable=import-outside-toplevel
    return grpc_service_pb2


class Service:
    def __init__(self, messages, network):
        self.messages, self.network = messages, network

    def infer(self, request, _):
        given = request.inputs[0]
        values = np.frombuffer(request.raw_input_contents[0], dtype='<f4').reshape(given.shape)
        with torch.inference_mode():
            outputs = self.network(torch.from_numpy(values.copy())).numpy()
        reply = self.messages.ModelInferResponse(model_name=request.model_name, id=request.id)
        reply.outputs.add(name='outputs', datatype='FP32', shape=outputs.shape)
        reply.raw_output_contents.append(outputs.tobytes())
        return reply

    def handlers(self):
        handler = grpc.unary_unary_rpc_method_handler(
            self.infer, request_deserializer=self.messages.ModelInferRequest.FromString,
            response_serializer=self.messages.ModelInferResponse.SerializeToString)
        return grpc.method_handlers_generic_handler('inference.GRPCInferenceService',
                                                    {'ModelInfer': handler})


def read_network(folder):
    config = json.loads((folder / 'config.json').read_text(encoding='utf-8'))
    tensors = safetensors_file.read(folder / 'model.safetensors')
    return torch_ladder.functional(torch_ladder.Network(config, tensors))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--model', type=pathlib.Path, required=True, help='folder of a version')
    parser.add_argument('--port_file', type=pathlib.Path, required=True)
    parser.add_argument('--workers', type=int, default=8, help='threads')
    arguments = parser.parse_args()

    server = grpc.server(concurrent.futures.ThreadPoolExecutor(arguments.workers))
    service = Service(import_messages(), read_network(arguments.model))
    server.add_generic_rpc_handlers([service.handlers()])
    port = server.add_insecure_port('127.0.0.1:0')
    signal.signal(signal.SIGTERM, lambda *_: server.stop(0))
    server.start()
    arguments.port_file.write_text(json.dumps({'grpc_port': port}), encoding='utf-8')
    server.wait_for_termination()


if __name__ == '__main__':
    main()
