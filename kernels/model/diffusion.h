// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_MODEL_DIFFUSION_H_
#define DEEPPCR_KERNELS_MODEL_DIFFUSION_H_

// The family `diffusion`: the reverse process of scheduler_config.json or of
// step_table.safetensors around a denoiser, maybe
// conditioned, maybe followed by a decoder. One system per entry of num_inference_steps, and one of
// any other number on demand; they share the weights in Model, and each keeps a packed copy of its
// own.
//
// denoiser_tensors.h has the tensors; beside them decoder.<j>.{weight,bias}, D -> decoder_widths ->
// output_dim: optional if decoder_widths is empty and output_dim equals state_dim. Any other tensor
// is an error.

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
// tables that LoadDiffusion makes of a number that config.json names. Guided, or with known
// elements, it is a DiffusionProgramSpec, of a named denoiser too.
absl::StatusOr<OwnedSystem> DiffusionSystemOf(const Model& model, const SystemKey& key,
                                              const ModelLimits& limits);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_MODEL_DIFFUSION_H_
