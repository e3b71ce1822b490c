// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/plan_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/base/json.h"
#include "kernels/base/status_context.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/plan/plan_json.h"

namespace deeppcr {
namespace {

using nlohmann::json;

constexpr std::string_view kFormat = "deeppcr-plan-1";
constexpr size_t kMaxDevices = 64;
constexpr size_t kMaxSystems = 64;
constexpr size_t kMaxDeviceClass = 256;

absl::StatusOr<KeyedPlan> ReadItem(const json& object, const std::string& device_class) {
  DEEPPCR_RETURN_IF_ERROR(CheckMembers(object, {"key", "plan"}));
  KeyedPlan item;
  DEEPPCR_ASSIGN_OR_RETURN(const json* key, JsonMember(object, "key"));
  DEEPPCR_ASSIGN_OR_RETURN(item.key, KeyFromJson(*key));
  DEEPPCR_ASSIGN_OR_RETURN(const json* plan, JsonMember(object, "plan"));
  DEEPPCR_ASSIGN_OR_RETURN(item.plan, PlanFromJson(*plan));
  item.key.device_class = device_class;
  item.plan.device_class = device_class;
  item.plan.build = item.key.build;
  item.plan.rtol = item.key.rtol;
  item.plan.source = PlanSource::kFile;
  return item;
}

const KeyedPlan* WithSteps(const std::vector<KeyedPlan>& items, int64_t num_steps) {
  const auto found = std::find_if(items.begin(), items.end(), [&](const KeyedPlan& item) {
    return item.key.num_steps == num_steps;
  });
  return found == items.end() ? nullptr : &*found;
}

absl::StatusOr<std::vector<KeyedPlan>> ReadDevice(const json& array,
                                                  const std::string& device_class) {
  if (!array.is_array()) return InvalidArgument("expected an array, got ", DescribeJson(array));
  if (array.empty() || array.size() > kMaxSystems)
    return InvalidArgument("expected 1 to ", kMaxSystems, " plans, got ", array.size());
  std::vector<KeyedPlan> items;
  for (const json& object : array) {
    absl::StatusOr<KeyedPlan> item = ReadItem(object, device_class);
    if (!item.ok()) return WithContext(item.status(), StrCat("plan ", items.size()));
    if (WithSteps(items, item->key.num_steps) != nullptr)
      return InvalidArgument("num_steps: expected one plan for ", item->key.num_steps, ", got two");
    items.push_back(*std::move(item));
  }
  return items;
}

}  // namespace

absl::StatusOr<PlanFile> PlanFile::Parse(std::string_view text) {
  DEEPPCR_ASSIGN_OR_RETURN(const json root, ParseJson(text, {.max_bytes = kMaxPlanBytes}));
  DEEPPCR_RETURN_IF_ERROR(CheckMembers(root, {"format", "devices"}));
  DEEPPCR_ASSIGN_OR_RETURN(const std::string format, TextMember(root, "format"));
  if (format != kFormat)
    return InvalidArgument("format: expected ", Quoted(kFormat), ", got ", Quoted(format));
  DEEPPCR_ASSIGN_OR_RETURN(const json* devices, JsonMember(root, "devices"));
  if (!devices->is_object())
    return InvalidArgument("devices: expected an object, got ", DescribeJson(*devices));
  if (devices->size() > kMaxDevices)
    return InvalidArgument("devices: expected at most ", kMaxDevices, ", got ", devices->size());
  PlanFile file;
  for (const auto& [device_class, array] : devices->items()) {
    if (device_class.empty() || device_class.size() > kMaxDeviceClass)
      return InvalidArgument("devices: expected names of 1 to ", kMaxDeviceClass, " bytes, got ",
                             device_class.size());
    absl::StatusOr<std::vector<KeyedPlan>> items = ReadDevice(array, device_class);
    if (!items.ok()) return WithContext(items.status(), StrCat("devices: ", Quoted(device_class)));
    file.devices_.emplace(device_class, *std::move(items));
  }
  return file;
}

void PlanFile::Add(const PlanKey& key, const Plan& plan) {
  const bool by_bits = plan.device_class == key.device_bits;
  devices_[by_bits ? key.device_bits : key.device_class].push_back({key, plan});
}

std::string PlanFile::Text() const {
  json root = {{"format", kFormat}, {"devices", json::object()}};
  for (const auto& [device_class, items] : devices_) {
    json& array = root["devices"][device_class] = json::array();
    for (const KeyedPlan& item : items)
      array.push_back({{"key", KeyToJson(item.key)}, {"plan", PlanToJson(item.plan)}});
  }
  return root.dump(1) + "\n";
}

const KeyedPlan* PlanFile::Find(const PlanKey& key) const {
  const KeyedPlan* first = nullptr;
  for (const std::string& name : {key.device_class, key.device_bits}) {
    const auto device = devices_.find(name);
    if (device == devices_.end()) continue;
    const KeyedPlan* item = WithSteps(device->second, key.num_steps);
    if (item == nullptr) continue;
    if (MisfitOf(key, item->key).empty()) return item;
    if (first == nullptr) first = item;
  }
  return first;
}

std::string PlanFile::Contents() const {
  if (devices_.empty()) return "none";
  const auto steps = [](const KeyedPlan& item) { return StrCat(item.key.num_steps); };
  return StrJoin(devices_, ", ", [&](const auto& device) {
    return StrCat(Quoted(device.first), " (", StrJoin(device.second, ", ", steps), ")");
  });
}

}  // namespace deeppcr
