// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_FUZZ_REPOSITORY_TREE_H_
#define DEEPPCR_TESTS_FUZZ_REPOSITORY_TREE_H_

// A model repository in a temporary directory, filled line by line with any kind of file under any
// name. All work goes through descriptors of directories and follows no link: whatever the lines
// say, nothing is written outside the directory.

#include <fcntl.h>
#include <linux/capability.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "kernels/base/strings.h"
#include "tests/fuzz/fuzz_target.h"

namespace deeppcr::fuzz {

// Takes from root, for the lifetime of the object, the right to read files that nobody may read.
class Unprivileged {
 public:
  Unprivileged() {
    known_ = ::syscall(SYS_capget, &header_, before_) == 0;
    __user_cap_data_struct now[2] = {before_[0], before_[1]};
    now[0].effective &= ~((1U << CAP_DAC_OVERRIDE) | (1U << CAP_DAC_READ_SEARCH));
    if (known_) ::syscall(SYS_capset, &header_, now);
  }
  ~Unprivileged() {
    if (known_) ::syscall(SYS_capset, &header_, before_);
  }
  Unprivileged(const Unprivileged&) = delete;
  Unprivileged& operator=(const Unprivileged&) = delete;

 private:
  __user_cap_header_struct header_ = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct before_[2] = {};
  bool known_ = false;
};

class OwnedDescriptor {
 public:
  explicit OwnedDescriptor(int fd) : fd_(fd) {}
  OwnedDescriptor(OwnedDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  OwnedDescriptor& operator=(OwnedDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~OwnedDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }

  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }

 private:
  int fd_;
};

// Opens the directory of this name, unless it is a link or no directory.
inline OwnedDescriptor OpenDirectory(int at, const std::string& name) {
  return OwnedDescriptor(::openat(at, name.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

// Opens a file for writing. O_NONBLOCK is for names that are FIFOs.
inline OwnedDescriptor OpenFile(int at, const std::string& name) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  return OwnedDescriptor(::openat(at, name.c_str(), kFlags, 0644));
}

inline void WriteInto(int at, const std::string& name, std::string_view contents) {
  const OwnedDescriptor file = OpenFile(at, name);
  if (!file.ok()) return;
  Require(::write(file.get(), contents.data(), contents.size()) == std::ssize(contents),
          "a temporary file can be written");
}

// Writes the smallest possible model: one value, one layer.
inline void WriteModelInto(int at) {
  constexpr std::string_view kHeader =
      R"({"layers.weight":{"dtype":"F32","shape":[1,1,1],"data_offsets":[0,4]}}  )";
  static_assert(kHeader.size() == 72);
  WriteInto(at, "config.json",
            R"({"model_type":"mlp","input_dim":1,"output_dim":1,"state_dim":1,"num_layers":1,)"
            R"("activation":"tanh"})");
  WriteInto(at, "model.safetensors",
            std::string("\x48\0\0\0\0\0\0\0", 8).append(kHeader).append("\0\0\0\x3f", 4));
}

// The names along a path: one to four names that a directory may hold, or else none.
inline std::vector<std::string> NamesOf(std::string_view path) {
  std::vector<std::string> names(1);
  for (const char c : path) {
    if (c == '/') {
      names.emplace_back();
    } else {
      names.back().push_back(c == '%' ? '\n' : c);  // a line cannot hold a line feed
    }
  }
  const bool plain = std::all_of(names.begin(), names.end(), [](const std::string& name) {
    return !name.empty() && name != "." && name != ".." && name.find('\0') == std::string::npos;
  });
  return plain && names.size() <= 4 ? names : std::vector<std::string>();
}

// True if a link that is `depth` directories below the temporary one stays inside: the link may go
// up only at its beginning, where the directories above are known, and never as far as the root.
inline bool StaysInside(std::string_view target, size_t depth) {
  if (target.starts_with('/')) return false;
  for (; target.starts_with("../") && depth > 0; --depth) target.remove_prefix(3);
  return (target == ".." && depth > 0) || target.find("..") == std::string_view::npos;
}

// A tree with <temporary>/repository, and <temporary>/outside/1 with a model that nobody may open.
class RepositoryTree {
 public:
  RepositoryTree() : path_(MakeTemporary()), temporary_(OpenDirectory(AT_FDCWD, path_)) {
    ::mkdirat(temporary_.get(), "repository", 0755);
    ::mkdirat(temporary_.get(), "outside", 0755);
    ::mkdirat(temporary_.get(), "outside/1", 0755);
    WriteModelInto(OpenDirectory(temporary_.get(), "outside/1").get());
    OutsideWasOpened();  // discards the opens by the clean-up of the previous tree
    for (const char* directory : {"/outside", "/outside/1"}) {
      Require(::inotify_add_watch(Inotify(), (path_ + directory).c_str(), IN_OPEN) >= 0,
              "inotify can watch a directory");
    }
  }
  ~RepositoryTree() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
    if (!error) return;
    MakeAccessible();
    std::filesystem::remove_all(path_, error);
  }
  RepositoryTree(const RepositoryTree&) = delete;
  RepositoryTree& operator=(const RepositoryTree&) = delete;

  const std::string& path() const { return path_; }
  std::string repository() const { return path_ + "/repository"; }

  // True if the kernel has reported an open outside the repository since the last call.
  bool OutsideWasOpened() const {
    alignas(inotify_event) char buffer[4096];
    bool opened = false;
    for (ssize_t size; (size = ::read(Inotify(), buffer, sizeof(buffer))) > 0;) {
      for (const char* at = buffer; at < buffer + size;) {
        const auto* event = reinterpret_cast<const inotify_event*>(at);
        opened |= (event->mask & IN_OPEN) != 0;
        at += sizeof(inotify_event) + event->len;
      }
    }
    return opened;
  }

  // Does what a line of the script says, as far as possible:
  //   d PATH         a directory             w PATH TEXT    a file
  //   m PATH         a directory of a model  b PATH         a file above every limit
  //   l PATH TARGET  a link                  p PATH         a FIFO
  //   n PATH COUNT   directories 1 to COUNT  s PATH         a socket
  //   x PATH         nobody may read it      r PATH         removed
  //   R              the repository is removed
  // PATH is relative to the repository; its directories are made. Returns false for other lines.
  bool Do(char operation, std::string_view line) {
    if (operation == 'R') return Remove(temporary_.get(), "repository"), true;
    const bool has_argument = operation == 'l' || operation == 'w' || operation == 'n';
    const size_t space = has_argument ? line.find(' ') : line.size();
    const std::vector<std::string> names = NamesOf(line.substr(0, space));
    const std::string argument(line.substr(std::min(space + 1, line.size())));
    if (std::string_view("dmlnxwbpsr").find(operation) == std::string_view::npos) return false;
    const OwnedDescriptor directory = Reach(names);
    if (directory.ok()) Make(operation, directory.get(), names, argument);
    return true;
  }

 private:
  // Makes the temporary directory, which stays for inspection if an input fails.
  static std::string MakeTemporary() {
    std::string path = (std::filesystem::temp_directory_path() / "deeppcr_fuzz.XXXXXX").string();
    Require(::mkdtemp(path.data()) != nullptr, "a temporary directory can be made");
    return path;
  }

  static int Inotify() {
    static const int fd = ::inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    return fd;
  }

  static void Remove(int at, const std::string& name) {
    std::error_code ignored;
    std::filesystem::remove_all(StrCat("/proc/self/fd/", at, "/", name), ignored);
  }

  // Without root one needs the right to search the directories that are to be removed.
  void MakeAccessible() const {
    namespace fs = std::filesystem;
    std::error_code error;
    for (fs::recursive_directory_iterator it(path_, error), end; !error && it != end;
         it.increment(error)) {
      if (!it->is_directory(error) || it->is_symlink(error)) continue;
      fs::permissions(it->path(), fs::perms::owner_all, error);
    }
  }

  // Opens the directory for the last of the names, and makes the directories on the way.
  OwnedDescriptor Reach(const std::vector<std::string>& names) const {
    if (names.empty()) return OwnedDescriptor(-1);
    OwnedDescriptor at = OpenDirectory(temporary_.get(), "repository");
    for (size_t i = 0; i + 1 < names.size() && at.ok(); ++i) {
      ::mkdirat(at.get(), names[i].c_str(), 0755);
      at = OpenDirectory(at.get(), names[i]);
    }
    return at;
  }

  static void Make(char operation, int at, const std::vector<std::string>& names,
                   const std::string& argument) {
    const std::string& name = names.back();
    switch (operation) {
      case 'd':
        ::mkdirat(at, name.c_str(), 0755);
        break;
      case 'm':
        return MakeModel(at, name);
      case 'n':
        return MakeVersions(at, name, argument);
      case 'w':
        return WriteInto(at, name, argument);
      case 'b':
        return MakeLarge(at, name);
      case 'l':
        return MakeLink(at, name, argument, names.size());
      case 'p':
        ::mkfifoat(at, name.c_str(), 0644);
        break;
      case 's':
        ::mknodat(at, name.c_str(), S_IFSOCK | 0644, 0);
        break;
      case 'x':
        return Forbid(at, name);
      case 'r':
        return Remove(at, name);
    }
  }

  static void MakeModel(int at, const std::string& name) {
    ::mkdirat(at, name.c_str(), 0755);
    if (const OwnedDescriptor made = OpenDirectory(at, name); made.ok()) WriteModelInto(made.get());
  }

  static void MakeVersions(int at, const std::string& name, const std::string& argument) {
    int count = 0;
    std::from_chars(argument.data(), argument.data() + argument.size(), count);
    ::mkdirat(at, name.c_str(), 0755);
    const OwnedDescriptor made = OpenDirectory(at, name);
    for (int i = 1; made.ok() && i <= std::min(count, 100); ++i) {
      ::mkdirat(made.get(), StrCat(i).c_str(), 0755);
    }
  }

  static void MakeLarge(int at, const std::string& name) {
    const OwnedDescriptor file = OpenFile(at, name);
    if (file.ok()) Require(::ftruncate(file.get(), 1 << 20) == 0, "a file can be enlarged");
  }

  static void MakeLink(int at, const std::string& name, const std::string& target, size_t depth) {
    if (StaysInside(target, depth)) ::symlinkat(target.c_str(), at, name.c_str());
  }

  static void Forbid(int at, const std::string& name) {
    struct stat info = {};
    const bool there = ::fstatat(at, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0;
    if (there && !S_ISLNK(info.st_mode)) ::fchmodat(at, name.c_str(), 0, 0);
  }

  const std::string path_;
  const OwnedDescriptor temporary_;
};

}  // namespace deeppcr::fuzz

#endif  // DEEPPCR_TESTS_FUZZ_REPOSITORY_TREE_H_
