// SPDX-License-Identifier: Apache-2.0
// The server's view of a repository on disk. An input is a script: lines that make files of any
// kind (RepositoryTree::Do), and lines that load, unload and find models in between. After each
// line the store must agree with what plain system calls say about the tree.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <tuple>
#include <vector>

#include "kernels/model/model.h"
#include "server/models/model_store.h"
#include "server/models/repository.h"
#include "tests/fuzz/repository_oracle.h"
#include "tests/fuzz/repository_tree.h"
#include "tests/testing/fake_engine.h"

namespace deeppcr::fuzz {
namespace {

#if defined(DEEPPCR_FUZZ_PLANTED_BUG)
// Follows a link to a model, as some servers do to let `stable` lead to one of several models.
absl::StatusOr<ModelStatus> LoadFrom(ModelStore& store, const std::filesystem::path& repository,
                                     const std::string& name, int64_t version) {
  std::error_code ignored;
  const auto target = std::filesystem::read_symlink(repository / name, ignored);
  return store.Load(target.empty() ? name : target.filename().string(), version);
}
#else
absl::StatusOr<ModelStatus> LoadFrom(ModelStore& store, const std::filesystem::path&,
                                     const std::string& name, int64_t version) {
  return store.Load(name, version);
}
#endif

bool IsPrintable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c < 0x7f; });
}

// A run of one input: a tree, a store on it, and the expected state of the store.
class Session {
 public:
  explicit Session(LogFormat format)
      : engine_([this](const std::string& directory) { return Read(directory); }),
        metrics_({"sequential"}, "v", "d", "b"),
        logger_(format, LogLevel::kDebug, [=](std::string_view line) { CheckLog(format, line); }),
        store_({.repository = tree_.repository(), .unload_patience = std::chrono::milliseconds(0)},
               engine_, metrics_, logger_) {}

  // Does a line of RepositoryTree, or A for LoadAll, or L, U and F with NAME VERSION for Load,
  // Unload and Find.
  void Do(std::string_view line) {
    if (line.empty()) return;
    const std::string_view rest = line.substr(std::min(line.size(), size_t{2}));
    if (tree_.Do(line[0], rest)) return;
    const size_t space = std::min(rest.rfind(' '), rest.size());
    const std::string name(rest.substr(0, space));
    const int64_t version = ReadVersion(rest.substr(std::min(space + 1, rest.size())));
    if (line[0] == 'A') LoadAll();
    if (line[0] == 'L') Load(name, version);
    if (line[0] == 'U') Unload(name, version);
    if (line[0] == 'F') Hold(name, version);
    CheckStore();
  }

  // Unloads everything, and requires that nothing is found then. Returns whether there ever was a
  // model.
  bool Finish() {
    std::set<std::string> names;
    for (const ModelStatus& status : store_.List()) names.insert(status.name);
    for (const std::string& name : names) Unload(name, 0);
    Require(models_.empty() && refused_.empty(), "every name was listed");
    for (const std::string& name : names) CheckFound(name, 0);
    CheckStore();
    return loaded_;
  }

 private:
  struct Version {
    bool ready = false;
    bool required = false;
  };
  struct Reading {
    std::string directory;
    StatusCode code;
  };
  struct Scan {
    std::map<std::string, Choice> choices;
    std::map<std::string, StatusCode> codes;  // codes of the chosen versions
  };

  // Reads a version as the engine does; the model computes nothing.
  absl::StatusOr<std::shared_ptr<const LoadedModel>> Read(const std::string& directory) {
    const absl::StatusOr<Model> model =
        ReadModel(directory, {.max_weights_bytes = 1 << 16, .max_config_bytes = 1 << 12});
    readings_.push_back({directory, model.status().code()});
    if (!model.ok()) return model.status();
    return std::make_shared<testing::FakeModel>();
  }

  // Names of files appear in the log: they must break neither lines nor JSON.
  static void CheckLog(LogFormat format, std::string_view line) {
    Require(line.ends_with('\n') && IsPrintable(line.substr(0, line.size() - 1)),
            "an event is one printable line");
    Require(format == LogFormat::kText || nlohmann::json::accept(line), "a line is JSON");
  }

  void CheckMessage(std::string_view message) const {
    Require(!message.empty() && message.size() <= 2048, "a message has 1 to 2048 bytes");
    Require(IsPrintable(message), "a message is printable ASCII");
    Require(message.find(tree_.path()) == std::string_view::npos,
            "no message tells where the repository lies");
  }

  void CheckCode(const absl::Status& status, StatusCode expected) const {
    Require(status.code() == expected, "a code is what the tree calls for");
    if (!status.ok()) CheckMessage(ToStd(status.message()));
  }

  static int64_t ReadVersion(std::string_view text) {
    Require(ParseVersion(text) == VersionOf(text),
            "a version is a positive integer without leading zeros");
    return text.starts_with('-') ? -VersionOf(text.substr(1)) : VersionOf(text);
  }

  std::string PathOf(const std::string& name) const { return tree_.repository() + "/" + name; }

  // Takes note that the store has read this version, which must be the next reading.
  StatusCode NoteReading(const std::string& name, int64_t version, bool required) {
    Require(!readings_.empty(), "what is plain is read");
    const Reading reading = readings_.front();
    readings_.erase(readings_.begin());
    Require(reading.directory == StrCat(PathOf(name), "/", version),
            "what is read is the version chosen");
    Note(name, version, {reading.code == StatusCode::kOk, required});
    return ToldOf(reading.code);
  }

  // Notes the result of a load; a failed reload keeps the existing model.
  void Note(const std::string& name, int64_t version, Version now) {
    Version& known = models_[name][version];
    known.required |= now.required;
    known.ready |= now.ready;
    loaded_ |= now.ready;
    if (now.ready) refused_.erase(name);
  }

  Choice ExpectLoad(const std::string& name, int64_t version) const {
    if (!IsName(name) || version < 0) return {StatusCode::kInvalidArgument};
    const Choice choice = version > 0 ? Choice{StatusCode::kOk, version} : HighestIn(PathOf(name));
    if (choice.code != StatusCode::kOk) return choice;
    return {CodeOfVersion(PathOf(name), choice.version), choice.version};
  }

  void Load(const std::string& name, int64_t version) {
    Choice choice;
    absl::StatusOr<ModelStatus> loaded = absl::UnknownError("");
    {
      const Unprivileged nobody;
      choice = ExpectLoad(name, version);
      loaded = LoadFrom(store_, tree_.repository(), name, version);
    }
    if (choice.code == StatusCode::kOk) choice.code = NoteReading(name, choice.version, false);
    Require(readings_.empty(), "nothing is read but the version chosen");
    CheckCode(loaded.status(), choice.code);
    if (!loaded.ok()) return;
    Require(loaded->name == name && loaded->version == choice.version,
            "a load tells what was loaded");
    // The policy keeps the latest version: those below this one are superseded.
    auto& versions = models_[name];
    versions.erase(versions.begin(), versions.find(choice.version));
  }

  // The result that LoadAll should have; nothing if the repository cannot be read.
  std::optional<Scan> ExpectScan() const {
    const auto entries = EntriesIn(tree_.repository());
    if (!entries.has_value()) return std::nullopt;
    Scan scan;
    for (const std::string& entry : *entries) {
      if (!IsName(entry) || entry.front() == '.' || KindOf(PathOf(entry)) == Kind::kFile) continue;
      const Choice choice = HighestIn(PathOf(entry));
      scan.choices[entry] = choice;
      scan.codes[entry] = CodeOfVersion(PathOf(entry), choice.version);
    }
    return scan;
  }

  void NoteScanned(const std::string& name, const Choice& choice, StatusCode code) {
    if (choice.code != StatusCode::kOk) {
      refused_.insert(name);
    } else if (code != StatusCode::kOk) {
      Note(name, choice.version, {.ready = false, .required = true});
    } else {
      NoteReading(name, choice.version, true);
    }
  }

  void LoadAll() {
    std::optional<Scan> scan;
    absl::Status status;
    {
      const Unprivileged nobody;
      scan = ExpectScan();
      status = store_.LoadAll();
    }
    // The message of this error names the path, for the operator, and so is not checked.
    Require(status.code() == (scan.has_value() ? StatusCode::kOk : StatusCode::kNotFound),
            "all is loaded if the repository can be read");
    if (!scan.has_value()) return;
    for (auto& [name, versions] : models_) {
      for (auto& [version, known] : versions) known.required = false;
    }
    for (const auto& [name, choice] : scan->choices) NoteScanned(name, choice, scan->codes[name]);
    Require(readings_.empty(), "nothing is read but the versions chosen");
    scanned_ = true;
  }

  bool Knows(const std::string& name, int64_t version) const {
    const auto model = models_.find(name);
    return model != models_.end() && (version == 0 || model->second.contains(version));
  }

  // The code for a name or version that the store does not know.
  StatusCode Unknown(const std::string& name) const {
    return refused_.contains(name) ? StatusCode::kFailedPrecondition : StatusCode::kNotFound;
  }

  StatusCode ExpectUnload(const std::string& name, int64_t version) const {
    if (!IsName(name)) return StatusCode::kInvalidArgument;
    const bool forgets = version == 0 && refused_.contains(name);
    return Knows(name, version) || forgets ? StatusCode::kOk : Unknown(name);
  }

  void Unload(const std::string& name, int64_t version) {
    const absl::Status status = store_.Unload(name, version);
    CheckCode(status, ExpectUnload(name, version));
    if (!status.ok()) return;
    if (version == 0) refused_.erase(name);
    const auto model = models_.find(name);
    if (model == models_.end()) return;
    std::erase_if(model->second,
                  [=](const auto& entry) { return version == 0 || entry.first == version; });
    if (model->second.empty()) models_.erase(model);
  }

  // Holds a model, like a request that outlives the next lines.
  void Hold(const std::string& name, int64_t version) {
    if (!IsName(name)) return;  // callers of Find check names
    CheckFound(name, version);
    if (const auto found = store_.Find(name, version); found.ok()) held_.push_back(*found);
  }

  // The version that an answer is about, or 0 if there is none. Version 0 asks for the highest
  // ready one or, if none is ready, for the highest.
  int64_t Pick(const std::string& name, int64_t version) const {
    if (!Knows(name, version)) return 0;
    if (version != 0) return version;
    const auto& versions = models_.at(name);
    const auto ready = std::find_if(versions.rbegin(), versions.rend(),
                                    [](const auto& entry) { return entry.second.ready; });
    return ready == versions.rend() ? versions.rbegin()->first : ready->first;
  }

  void CheckFound(const std::string& name, int64_t version) const {
    const int64_t picked = Pick(name, version);
    const bool ready = picked > 0 && models_.at(name).at(picked).ready;
    const StatusCode code = ready        ? StatusCode::kOk
                            : picked > 0 ? StatusCode::kFailedPrecondition
                                         : Unknown(name);
    const auto found = store_.Find(name, version);
    CheckCode(found.status(), code);
    Require(!ready || ((*found)->name == name && (*found)->version == picked),
            "what is found is the version asked for, or the highest ready one");
    const auto described = store_.Describe(name, version);
    const bool lists = picked > 0 || (version == 0 && refused_.contains(name));
    CheckCode(described.status(), lists ? StatusCode::kOk : Unknown(name));
    Require(
        !lists || (described->version == picked && described->model == (ready ? *found : nullptr)),
        "what is described is what is found");
  }

  using Row = std::tuple<std::string, int64_t, bool>;  // name, version, ready
  std::set<Row> ExpectList() const {
    std::set<Row> rows;
    for (const std::string& name : refused_) rows.insert({name, 0, false});
    for (const auto& [name, versions] : models_) {
      for (const auto& [version, entry] : versions) rows.insert({name, version, entry.ready});
    }
    return rows;
  }

  void CheckRow(const ModelStatus& status) const {
    const bool ready = status.model != nullptr;
    Require(status.state == (ready ? ModelState::kReady : ModelState::kFailed),
            "a model is ready or has failed");
    if (!ready || !status.reason.empty()) CheckMessage(status.reason);
    CheckFound(status.name, status.version);
    CheckFound(status.name, 0);
  }

  bool ExpectReady() const {
    if (!scanned_ || !refused_.empty()) return false;
    bool any = false;
    for (const auto& [name, versions] : models_) {
      for (const auto& [version, entry] : versions) {
        any = any || entry.ready;
        const bool makes_up = std::any_of(
            versions.find(version), versions.end(),
            [](const auto& each) { return each.second.ready && !each.second.required; });
        if (entry.required && !entry.ready && !makes_up) return false;
      }
    }
    return any;
  }

  void CheckStore() const {
    std::vector<Row> rows;
    for (const ModelStatus& status : store_.List()) {
      rows.emplace_back(status.name, status.version, status.model != nullptr);
      CheckRow(status);
    }
    const std::set<Row> expected = ExpectList();
    Require(std::equal(rows.begin(), rows.end(), expected.begin(), expected.end()),
            "the list is what was loaded and refused, in order");
    Require(store_.Ready() == ExpectReady(),
            "it is ready when all that was found is, or a higher version, and there is something");
    Require(!tree_.OutsideWasOpened(), "nothing outside the repository is opened");
  }

  RepositoryTree tree_;
  std::vector<Reading> readings_;
  testing::FakeEngine engine_;
  Metrics metrics_;
  Logger logger_;
  ModelStore store_;
  // The expected state of the store.
  std::map<std::string, std::map<int64_t, Version>> models_;
  std::set<std::string> refused_;
  bool scanned_ = false;
  bool loaded_ = false;
  std::vector<std::shared_ptr<ServedModel>> held_;
};

}  // namespace

bool TryInput(std::string_view bytes) {
  constexpr int kMaxLines = 32;  // keeps an input quick
  Session session(bytes.size() % 2 == 0 ? LogFormat::kJson : LogFormat::kText);
  for (int i = 0; i < kMaxLines && !bytes.empty(); ++i) {
    const size_t end = std::min(bytes.find('\n'), bytes.size());
    session.Do(bytes.substr(0, end));
    bytes.remove_prefix(std::min(end + 1, bytes.size()));
  }
  return session.Finish();
}

}  // namespace deeppcr::fuzz
