#include <gtest/gtest.h>

#include <cstdio>

#include <tessera/device.hpp>

// Without a GPU the tests are skipped; 77 is their SKIP_RETURN_CODE in CTest.
int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (tessera::cuda_device_count() == 0) {
    std::puts("no GPU here: skipped");
    return 77;
  }
  return RUN_ALL_TESTS();
}
