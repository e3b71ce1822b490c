// SPDX-License-Identifier: Apache-2.0
#include "kernels/model/registry.h"

#include <algorithm>
#include <array>

#include "kernels/model/dense_stack.h"
#include "kernels/model/diffusion.h"

namespace deeppcr {
namespace {

constexpr std::array<ModelFamily, 3> kFamilies = {{
    {"mlp", &LoadMlp, nullptr, nullptr, "plain deep network: z_l = act(W_l z_(l-1) + b_l)"},
    {"resnet", &LoadResnet, nullptr, nullptr,
     "residual network: z_l = z_(l-1) + s act(W_l z_(l-1) + b_l)"},
    {"diffusion", &LoadDiffusion, &LoadDiffusionScheduler, &DiffusionSystemOf,
     "diffusion sampler: the reverse steps of DDPM or DDIM around a denoiser"},
}};

}  // namespace

std::span<const ModelFamily> ModelFamilies() { return kFamilies; }

const ModelFamily* FindModelFamily(std::string_view name) {
  const auto found = std::find_if(kFamilies.begin(), kFamilies.end(),
                                  [=](const ModelFamily& family) { return family.name == name; });
  return found != kFamilies.end() ? &*found : nullptr;
}

}  // namespace deeppcr
