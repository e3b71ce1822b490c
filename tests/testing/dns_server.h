// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_TESTING_DNS_SERVER_H_
#define DEEPPCR_TESTS_TESTING_DNS_SERVER_H_

#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace deeppcr::testing {

// A server of DNS on a UDP port of this machine, for which every name has the same addresses of
// IPv4, and nothing else. Thread-safe.
class DnsServer {
 public:
  DnsServer();
  ~DnsServer();
  DnsServer(const DnsServer&) = delete;
  DnsServer& operator=(const DnsServer&) = delete;

  // 127.0.0.1:port
  std::string address() const;
  // Each as "127.0.0.2".
  void SetAddresses(std::vector<std::string> addresses);

 private:
  void Run();
  // The reply to a query; empty for what is none.
  std::string Answer(const std::string& query);

  int socket_ = -1;
  std::mutex mutex_;
  std::vector<std::string> addresses_;  // guarded by mutex_
  std::atomic<bool> leaving_{false};
  std::thread thread_;
};

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_TESTING_DNS_SERVER_H_
