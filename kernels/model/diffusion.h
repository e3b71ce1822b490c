// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_MODEL_DIFFUSION_H_
#define DEEPPCR_KERNELS_MODEL_DIFFUSION_H_

// The family `diffusion`: the reverse process of scheduler_config.json around a denoiser, maybe
// conditioned, maybe followed by a decoder. One system per entry of num_inference_steps, and one of
// any other number on demand; they share the weights in Model, and each keeps a packed copy of its
// own.
//
// Tensors, PyTorch's names and layout ([out, in]), with D = state_dim, H = hidden_dim,
// E = time_embedding_dim, i < num_blocks:
//   input_proj.{weight [H, D], bias [H]}
//   time_embed.mlp.0.{weight [H, E], bias [H]}, time_embed.mlp.2.{weight [H, H], bias [H]}
//   class_embed.weight [num_classes, H]                    iff num_classes > 0
//   cond_embed.{weight [H, conditioning_dim], bias [H]}    iff conditioning_dim > 0
//   final_layer.linear.{weight [D, H], bias [D]}
//   residual_mlp:
//     res_blocks.<i>.linear.{weight [H, H], bias [H]}
//     res_blocks.<i>.modulation.{weight [H, H], bias [H]}
//   adaln_mlp, as MAR's:
//     res_blocks.<i>.in_ln.{weight [H], bias [H]}
//     res_blocks.<i>.mlp.0.{weight [H, H], bias [H]}, res_blocks.<i>.mlp.2.{weight, bias} likewise
//     res_blocks.<i>.adaLN_modulation.1.{weight [3H, H], bias [3H]}   rows: shift, scale, gate
//     final_layer.adaLN_modulation.1.{weight [2H, H], bias [2H]}      rows: shift, scale
//   decoder.<j>.{weight, bias}, D -> decoder_widths -> output_dim: optional if decoder_widths is
//     empty and output_dim equals state_dim
// Anything else is an error.

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/model/model.h"

namespace deeppcr {

// ModelFamily::load_scheduler: fills model.diffusion.tables, but for the time embeddings, and
// model.max_num_steps from model.config and model.scheduler.
absl::Status LoadDiffusionScheduler(const ModelLimits& limits, Model& model);

// ModelFamily::load: the rest of model.diffusion, and model.systems.
absl::Status LoadDiffusion(const Tensors& tensors, const ModelLimits& limits, Model& model);

// ModelFamily::system_of: any number of inference steps up to model.max_num_steps, with the very
// tables that LoadDiffusion makes of a number that config.json names.
absl::StatusOr<OwnedSystem> DiffusionSystemOf(const Model& model, int64_t num_steps,
                                              const ModelLimits& limits);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_MODEL_DIFFUSION_H_
