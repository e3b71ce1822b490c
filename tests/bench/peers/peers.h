/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DEEPPCR_TESTS_BENCH_PEERS_PEERS_H_
#define DEEPPCR_TESTS_BENCH_PEERS_PEERS_H_

/* A workload of problems.py as the native peers get it; native.py repeats the structures. Matrices
 * are column-major, [inputs][outputs], and begin at 64 bytes. */

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct PeerDense {
  int64_t rows, cols;
  const float* weight; /* [cols][rows] */
  const float* bias;   /* [rows] */
} PeerDense;

enum { kPeerStack = 0, kPeerResidual = 1, kPeerAdaLn = 2 };

typedef struct PeerProblem {
  int64_t kind, samples, steps, dim, hidden, blocks;
  int64_t parts;           /* vectors of mu for a step */
  PeerDense input, output; /* of a stack: encode and decode */
  const float* first;      /* [blocks][H][H]; of a stack [steps][D][D] */
  const float* first_bias; /* [blocks][H]; of a stack [steps][D] */
  const float* second;     /* [blocks][H][H]; adaLN only */
  const float* second_bias;
  const float* mu;           /* [steps][parts][H] */
  const float* coefficients; /* [steps][3] */
  int64_t decoders;          /* 0 or 2 */
  PeerDense decoder[2];
} PeerProblem;

/* A peer: outputs [samples][rows] of inputs x [samples][cols] and, of diffusion models, noise
 * [samples][steps][D] or NULL. Returns 0, or another number if it has no code for these sizes. */
typedef int (*PeerRun)(const void* problem, const void* x, const void* noise, void* y);

#ifdef __cplusplus
}
#endif

#endif /* DEEPPCR_TESTS_BENCH_PEERS_PEERS_H_ */
