// Where the library looks for tuning files, and that an invalid one never affects a plan.
#include <gtest/gtest.h>

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <tessera/tessera.hpp>

namespace {

using namespace tessera;  // NOLINT: the test uses many names
namespace fs = std::filesystem;

const std::string kForced = "sm90_matmul_m128_n128_k64_s5";  // not the cost model's choice
const std::string kSignature = "matmul bf16[4096x4096] * bf16[4096x4096] -> bf16 on cuda";

/// Each test has an environment of its own. A device's file is read once per process, so each test
/// uses a device name of its own.
class TuningFiles : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    device_ = std::string("Test card ") + info->name();
    folder_ = fs::path(testing::TempDir()) / ("tuning_" + std::string(info->name()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    for (const char* name : {"TESSERA_TUNING", "XDG_CONFIG_HOME", "HOME"}) {
      const char* value = std::getenv(name);
      former_.emplace_back(name, value ? value : "", value != nullptr);
      unsetenv(name);
    }
  }
  void TearDown() override {
    for (const auto& [name, value, was_set] : former_) {
      was_set ? setenv(name.c_str(), value.c_str(), 1) : unsetenv(name.c_str());
    }
    fs::remove_all(folder_);
  }

  fs::path write(const fs::path& name, const std::string& contents) const {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name, std::ios::binary) << contents;
    return folder_ / name;
  }
  std::string good_file() const {
    return "tessera-tuning 1\ndevice " + device_ + "\n" + kForced + "\t" + kSignature + "\n";
  }
  static void name_file(const fs::path& path) { setenv("TESSERA_TUNING", path.c_str(), 1); }

  Explanation explained() const {
    DeviceFacts facts = device_preset("h200");
    facts.name = device_;
    const auto square = [] { return tensor(nullptr, DType::bf16, {4096, 4096}); };
    MatmulProblem problem;
    problem.a = square(), problem.b = square(), problem.out = square();
    const Explanation e = explain(problem, facts);
    EXPECT_EQ(plan(problem, facts).kernel_name, e.plan.kernel_name);
    return e;
  }
  /// Why the file is not used. Also checks that the cost model chooses the plan.
  std::string ignored() const {
    const Explanation e = explained();
    EXPECT_EQ(e.chosen_by, ChosenBy::cost_model);
    EXPECT_TRUE(e.supported);
    return e.tuning.ignored;
  }

  std::string device_;
  fs::path folder_;

 private:
  std::vector<std::tuple<std::string, std::string, bool>> former_;
};

TEST_F(TuningFiles, TheVariableNamesAFile) {
  name_file(write("mine", good_file()));
  const Explanation e = explained();
  EXPECT_EQ(e.plan.kernel_name, kForced);
  EXPECT_EQ(e.chosen_by, ChosenBy::tuning_file);
  EXPECT_EQ(to_string(e.tuning), (folder_ / "mine").string() + ": in use (1 problem)");
}

TEST_F(TuningFiles, InXdgConfigHome) {
  write("tessera/Test-card-InXdgConfigHome.tuning", good_file());
  setenv("XDG_CONFIG_HOME", folder_.c_str(), 1);
  EXPECT_EQ(explained().plan.kernel_name, kForced);
}

TEST_F(TuningFiles, InTheHomeFolder) {
  write(".config/tessera/Test-card-InTheHomeFolder.tuning", good_file());
  setenv("HOME", folder_.c_str(), 1);
  setenv("XDG_CONFIG_HOME", "not/absolute", 1);
  EXPECT_EQ(explained().plan.kernel_name, kForced);
}

TEST_F(TuningFiles, AnEmptyVariableMeansNone) {
  write("tessera/Test-card-AnEmptyVariableMeansNone.tuning", good_file());
  setenv("XDG_CONFIG_HOME", folder_.c_str(), 1);
  setenv("TESSERA_TUNING", "", 1);
  const Explanation e = explained();
  EXPECT_EQ(e.chosen_by, ChosenBy::cost_model);
  EXPECT_EQ(to_string(e.tuning), "none");
}

TEST_F(TuningFiles, NoHomeMeansNoFile) { EXPECT_EQ(to_string(explained().tuning), "none"); }

TEST_F(TuningFiles, AnAbsentFileIsNotMentioned) {
  setenv("HOME", folder_.c_str(), 1);
  const Explanation e = explained();
  EXPECT_EQ(e.tuning.ignored, "");
  EXPECT_FALSE(e.tuning.found);
  EXPECT_EQ(to_text(e).find("tuning"), std::string::npos);
}

TEST_F(TuningFiles, AnAbsentFileThatTheVariableNames) {
  name_file(folder_ / "nowhere");
  EXPECT_EQ(ignored(), "no such file");
}

TEST_F(TuningFiles, ABrokenFileIsIgnoredAsAWhole) {
  name_file(write("broken", good_file() + "sm90_x\tmatmul\n"));
  EXPECT_EQ(ignored(), "line 4: no kernel is called 'sm90_x'");
}

TEST_F(TuningFiles, AFileOfAnotherDeviceIsIgnored) {
  name_file(write("foreign", "tessera-tuning 1\ndevice NVIDIA H100\n"));
  EXPECT_EQ(ignored(), "line 2: measured on 'NVIDIA H100', the device is '" + device_ + "'");
}

TEST_F(TuningFiles, AFolderIsIgnored) {
  name_file(folder_);
  EXPECT_EQ(ignored(), "not a regular file");
}

TEST_F(TuningFiles, APipeIsIgnored) {
  const fs::path pipe = folder_ / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  name_file(pipe);
  EXPECT_EQ(ignored(), "not a regular file");
}

TEST_F(TuningFiles, AHugeFileIsIgnored) {
  const fs::path path = write("huge", "tessera-tuning 1\n");
  fs::resize_file(path, std::uintmax_t{17} << 20);
  name_file(path);
  EXPECT_EQ(ignored(), "larger than 16777216 bytes");
}

TEST_F(TuningFiles, AFileIsReadOncePerProcess) {
  const fs::path path = write("mine", good_file());
  name_file(path);
  EXPECT_EQ(explained().plan.kernel_name, kForced);
  fs::remove(path);
  EXPECT_EQ(explained().plan.kernel_name, kForced);
}

TEST_F(TuningFiles, ManyThreadsReadOneFile) {
  name_file(write("mine", good_file()));
  std::vector<std::string> chosen(8);
  std::vector<std::thread> threads;
  for (std::string& name : chosen)
    threads.emplace_back([&] { name = explained().plan.kernel_name; });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& name : chosen) EXPECT_EQ(name, kForced);
}

TEST_F(TuningFiles, APlanOfAForcedRowRuns) {
  const HostTensor a(DType::f32, {40, 24}), b(DType::f32, {24, 16});
  HostTensor out(DType::f32, {40, 16});
  MatmulProblem problem;
  problem.a = a.view(), problem.b = b.view(), problem.out = out.view();
  Execution execution;
  execution.kernel = "cpu_matmul_m64_n384_k512";
  EXPECT_NO_THROW(matmul(problem, execution));
  execution.kernel = "cpu_attention_q128_k192";
  EXPECT_THROW(matmul(problem, execution), Error);
}

}  // namespace
