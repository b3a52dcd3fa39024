#include "apps/tessera/torch_peer.hpp"

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "apps/tessera/places.hpp"

namespace tessera::tool {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr double kStartSeconds = 120, kRunSeconds = 120;

// The adapter lies in the source tree, or in the folder of data beside the installed tool.
fs::path find_adapter() {
  const fs::path installed = own_path().parent_path() / TESSERA_TOOL_DATA;
  for (const fs::path& path : {find_above("bench/peers/torch_cpu.py"), installed / "torch_cpu.py"})
    if (!path.empty() && fs::exists(path)) return path;
  throw std::runtime_error("bench/peers/torch_cpu.py is missing: run this within the source tree");
}

json answer(Coprocess& process, double timeout) {
  json reply = json::parse(process.receive(timeout));
  if (reply.contains("unavailable"))
    throw std::runtime_error(reply.at("unavailable").get<std::string>() +
                             "; a Python with PyTorch: pip install torch, then --python or "
                             "TESSERA_PYTHON names it");
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
    const std::string reason = error.what();
    unavailable_ = reason.find(python) == std::string::npos ? python + ": " + reason : reason;
  }
}

double TorchPeer::run_ms() {
  process_->send("run");
  return answer(*process_, kRunSeconds).at("ms").get<double>();
}

}  // namespace tessera::tool
