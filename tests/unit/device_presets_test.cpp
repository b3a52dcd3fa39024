#include <gtest/gtest.h>

#include <tessera/device.hpp>
#include <tessera/error.hpp>

namespace {

using namespace tessera;  // NOLINT: the test uses many names

TEST(DevicePresets, EveryNameGivesFactsThatPlanningCanUse) {
  const std::vector<std::string> expected = {"h100", "h200",    "a100", "l4",
                                             "l40s", "rtx4090", "b200", "cpu"};
  EXPECT_EQ(device_presets(), expected);
  for (const std::string& name : device_presets()) {
    const DeviceFacts facts = device_preset(name);
    EXPECT_FALSE(facts.name.empty());
    EXPECT_GT(facts.units, 0);
    EXPECT_GT(facts.l2_bytes, 1 << 20);
    EXPECT_GT(facts.memory_bytes, facts.l2_bytes);
    EXPECT_GT(facts.clock_ghz, 0.5);
    EXPECT_GT(facts.memory_tbs, 0);
    const bool gpu = facts.kind == DeviceKind::cuda;
    EXPECT_EQ(gpu, name != "cpu");
    EXPECT_EQ(gpu, facts.compute_capability >= 80);
    EXPECT_EQ(gpu, facts.tensor_tflops > 100);
    EXPECT_EQ(gpu, facts.shared_bytes_per_block >= 99 * 1024);
    EXPECT_EQ(gpu, facts.simd.empty());
  }
}

TEST(DevicePresets, FactsOfHopper) {
  const DeviceFacts h100 = device_preset("h100"), h200 = device_preset("h200");
  EXPECT_EQ(h100.compute_capability, 90);
  EXPECT_EQ(h100.units, 132);
  EXPECT_EQ(h100.shared_bytes_per_block, 232448);
  EXPECT_GT(h200.memory_tbs, h100.memory_tbs);
}

TEST(DevicePresets, AnUnknownNameListsTheKnownOnes) {
  try {
    device_preset("h10O");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_STREQ(
        error.what(),
        "device: expected one of h100, h200, a100, l4, l40s, rtx4090, b200, cpu, got \"h10O\"");
  }
}

}  // namespace
