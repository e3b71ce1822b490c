// SPDX-License-Identifier: Apache-2.0
// The reader of plan.json. Accepted files are checked against limits written down here, and against
// the reading of a plain JSON parser.

#include <nlohmann/json.hpp>
#include <string>

#include "kernels/plan/plan_file.h"
#include "tests/fuzz/fuzz_target.h"

namespace deeppcr::fuzz {
namespace {

using nlohmann::json;

#if defined(DEEPPCR_FUZZ_PLANTED_BUG)
// Forgets the range of one field: more than 64 warm sweeps are read as 64.
absl::StatusOr<PlanFile> Parse(std::string_view text) {
  json root = json::parse(text, nullptr, /*allow_exceptions=*/false);
  const json flat = root.is_structured() ? root.flatten() : json::object();
  for (const auto& [pointer, value] : flat.items()) {
    const json::json_pointer at(pointer);
    if (pointer.ends_with("/warm_sweeps") && value.is_number_unsigned() && value > 64)
      root.at(at) = 64;
  }
  return PlanFile::Parse(root.dump(-1, ' ', false, json::error_handler_t::replace));
}
#else
absl::StatusOr<PlanFile> Parse(std::string_view text) { return PlanFile::Parse(text); }
#endif

bool Within(double value, double low, double high) { return value >= low && value <= high; }

void RequireChoice(const PlanChoice& choice, const json& object) {
  Require(object.size() == 5, "a choice has its fields and no other");
  Require(object.at("solver") == choice.solver, "solver is as given");
  Require(choice.solver != "sequential" && choice.solver != "auto", "a choice is iterative");
  Require(object.at("shooting_interval") == choice.shooting_interval,
          "shooting_interval is as given");
  Require(Within(choice.shooting_interval, 1, 1 << 20), "shooting_interval is in range");
  Require(object.at("warm_sweeps") == choice.warm_sweeps, "warm_sweeps is as given");
  Require(Within(choice.warm_sweeps, 0, 64), "warm_sweeps is in range");
  Require(object.at("initial_guess") == std::string(ToString(choice.initial_guess)),
          "initial_guess is as given");
  Require(choice.initial_guess != InitialGuess::kPrevious &&
              choice.initial_guess != InitialGuess::kFromPlan,
          "initial_guess is one that a plan may name");
  Require(object.at("jacobian_refresh") == std::string(ToString(choice.jacobian_refresh)),
          "jacobian_refresh is as given");
}

void RequireEntries(const Plan& plan, const json& entries) {
  Require(entries.size() == plan.entries.size(), "as many entries as given");
  Require(Within(static_cast<double>(entries.size()), 1, 64), "1 to 64 entries");
  int32_t before = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    const PlanEntry& entry = plan.entries[i];
    Require(entry.max_samples > before && entry.max_samples <= 4096, "max_samples ascend");
    before = entry.max_samples;
    Require(entries[i].at("max_samples") == entry.max_samples, "max_samples is as given");
    Require(entries[i].at("solver") == entry.solver, "an entry's solver is as given");
    Require(entry.solver == "sequential" || entry.solver == entry.parallel.solver,
            "an entry runs what it describes");
    Require(entry.sequential_seconds >= 0 && entry.parallel_seconds >= 0, "times are not negative");
    RequireChoice(entry.parallel, entries[i].at("parallel"));
    Require(entry.ways.has_value() == entries[i].contains("ways"), "ways are there if given");
    if (!entry.ways.has_value()) continue;
    Require(entries[i].at("ways").at("way") == std::string(ToString(entry.ways->way)),
            "the way is as given");
    Require(entry.ways->sequential_seconds >= 0 && entry.ways->parallel_seconds >= 0,
            "times of ways are not negative");
  }
}

void RequireItem(const KeyedPlan& item, const json& object) {
  const json& key = object.at("key");
  const json& plan = object.at("plan");
  Require(key.at("build") == item.key.build, "build is as given");
  Require(key.at("device") == item.key.device_bits, "device is as given");
  Require(key.at("weights_sha256") == item.key.weights_sha256, "weights_sha256 is as given");
  Require(key.at("num_steps") == item.key.num_steps && item.key.num_steps >= 1,
          "num_steps is as given");
  Require(item.key.build.size() <= 256, "texts are short");
  Require(plan.at("least_rtol") == item.plan.least_rtol && item.plan.least_rtol >= 0,
          "least_rtol is as given");
  const json& choices = plan.at("choices");
  Require(choices.size() == item.plan.choices.size() && choices.size() <= 16,
          "as many choices as given");
  for (size_t i = 0; i < choices.size(); ++i) {
    RequireChoice(item.plan.choices[i], choices[i]);
    Require(item.plan.ChoiceOf(item.plan.choices[i].solver) == &item.plan.choices[i],
            "a solver has one choice");
  }
  RequireEntries(item.plan, plan.at("entries"));
}

}  // namespace

bool TryInput(std::string_view bytes) {
  const absl::StatusOr<PlanFile> file = Parse(bytes);
  if (!file.ok()) {
    RequireCleanRefusal(file.status());
    return false;
  }
  Require(bytes.size() <= size_t{1} << 20, "a file has at most 1 MiB");
  const json root = json::parse(bytes, nullptr, /*allow_exceptions=*/false);
  Require(root.is_object() && root.at("devices").size() == file->devices().size(),
          "as many device classes as given");
  for (const auto& [device_class, items] : file->devices()) {
    const json& given = root.at("devices").at(device_class);
    Require(given.size() == items.size() && !items.empty(), "as many plans as given");
    for (size_t i = 0; i < items.size(); ++i) {
      RequireItem(items[i], given[i]);
      Require(file->Find(items[i].key) == &items[i], "a plan is found by its key");
    }
  }
  const absl::StatusOr<PlanFile> again = PlanFile::Parse(file->Text());
  Require(again.ok() && again->Text() == file->Text(), "a file that is written out reads the same");
  return true;
}

}  // namespace deeppcr::fuzz
