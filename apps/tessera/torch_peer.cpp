#include "apps/tessera/torch_peer.hpp"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace tessera::tool {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr double kStartSeconds = 120, kRunSeconds = 120;

// The adapter lies in the source tree: above the build folder or the current one.
fs::path find_adapter() {
  const fs::path name = "bench/peers/torch_cpu.py";
  for (const fs::path& start : {fs::path(own_path()).parent_path(), fs::current_path()})
    for (fs::path folder = start;; folder = folder.parent_path()) {
      if (fs::exists(folder / name)) return folder / name;
      if (folder == folder.parent_path()) break;
    }
  throw std::runtime_error(name.string() +
                           " was not found above the program or the current folder");
}

json answer(Coprocess& process, double timeout) {
  json reply = json::parse(process.receive(timeout));
  if (reply.contains("unavailable"))
    throw std::runtime_error(reply.at("unavailable").get<std::string>());
  return reply;
}

}  // namespace

TorchPeer::TorchPeer(const std::string& python, int threads, std::int64_t batch, std::int64_t heads,
                     std::int64_t length, std::int64_t dim) {
  try {
    process_ =
        std::make_unique<Coprocess>(std::vector<std::string>{python, find_adapter().string()});
    const json request{
        {"threads", threads}, {"batch", batch}, {"heads", heads}, {"length", length}, {"dim", dim}};
    process_->send(request.dump());
    version_ = answer(*process_, kStartSeconds).at("version").get<std::string>();
  } catch (const std::exception& error) {
    unavailable_ = python + ": " + error.what();
  }
}

double TorchPeer::run_ms() {
  process_->send("run");
  return answer(*process_, kRunSeconds).at("ms").get<double>();
}

}  // namespace tessera::tool
