// SPDX-License-Identifier: Apache-2.0
#include "kernels/model/registry.h"

#include <algorithm>
#include <array>

#include "kernels/model/block_stack.h"
#include "kernels/model/denoiser_program.h"
#include "kernels/model/dense_stack.h"
#include "kernels/model/diffusion.h"

namespace deeppcr {
namespace {

constexpr std::array<ModelFamily, 4> kFamilies = {{
    {.name = "mlp",
     .load = &LoadMlp,
     .summary = "plain deep network: z_l = act(W_l z_(l-1) + b_l)"},
    {.name = "resnet",
     .load = &LoadResnet,
     .summary = "residual network: z_l = z_(l-1) + s act(W_l z_(l-1) + b_l)"},
    {.name = "stack",
     .load_program = &LoadBlockGraph,
     .load = &LoadStack,
     .complete = &CompleteStack,
     .summary = "stack of blocks of any form: z_l = block_l(z_(l-1)), block.onnx"},
    {.name = "diffusion",
     .load_program = &LoadDenoiserProgram,
     .load_scheduler = &LoadDiffusionScheduler,
     .load = &LoadDiffusion,
     .system_of = &DiffusionSystemOf,
     .summary = "diffusion sampler: the reverse steps of DDPM or DDIM around a denoiser"},
}};

}  // namespace

std::span<const ModelFamily> ModelFamilies() { return kFamilies; }

const ModelFamily* FindModelFamily(std::string_view name) {
  const auto found = std::find_if(kFamilies.begin(), kFamilies.end(),
                                  [=](const ModelFamily& family) { return family.name == name; });
  return found != kFamilies.end() ? &*found : nullptr;
}

}  // namespace deeppcr
