#include <gtest/gtest.h>

#include <cstdio>

#include <tessera/device.hpp>

// GPU tests are skipped where there is no GPU; 77 is the code that CTest takes for "skipped".
int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (tessera::cuda_device_count() == 0) {
    std::puts("no GPU here: skipped");
    return 77;
  }
  return RUN_ALL_TESTS();
}
