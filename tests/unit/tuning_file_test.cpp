// What a tuning file may contain, and the errors of invalid ones.
#include <gtest/gtest.h>

#include <string>

#include <tessera/error.hpp>

#include "src/select/tuning.hpp"

namespace {

using namespace tessera;            // NOLINT: the test uses many names
using namespace tessera::planning;  // NOLINT

const std::string kDevice = "NVIDIA H200";
const std::string kHead = "tessera-tuning 1\ndevice NVIDIA H200\n";
const std::string kProduct = "matmul bf16[64x64] * bf16[64x64] -> bf16 on cuda";
const std::string kLine = "sm90_matmul_m128_n256_k64_s4\t" + kProduct;

std::string refusal(const std::string& text, const std::string& device = kDevice) {
  try {
    parse_tuning(all_families(), text, device);
    return "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
}

std::string row_of(const PreferredRows& rows, const std::string& signature) {
  const auto found = rows.find(signature);
  return found == rows.end() ? "none" : found->second.row->name;
}

TEST(TuningFile, NamesARowForEachProblem) {
  const PreferredRows rows =
      parse_tuning(all_families(),
                   kHead + "# a remark\n\n" + kLine + "\t812 us, 2026-11-21\n" +
                       "sm90_sddmm_m64_n512_k64_s3\tsddmm bf16[1x1] * bf16[1x1] -> x on cuda\n",
                   kDevice);
  EXPECT_EQ(rows.size(), 2u);
  EXPECT_EQ(row_of(rows, kProduct), "sm90_matmul_m128_n256_k64_s4");
  EXPECT_EQ(row_of(rows, "sddmm bf16[1x1] * bf16[1x1] -> x on cuda"), "sm90_sddmm_m64_n512_k64_s3");
  EXPECT_EQ(row_of(rows, kProduct + "\t812 us, 2026-11-21"), "none");
}

TEST(TuningFile, LinesMayEndInCrLfAndTheLastWithoutANewline) {
  std::string text = kHead + kLine;
  EXPECT_EQ(row_of(parse_tuning(all_families(), text, kDevice), kProduct),
            "sm90_matmul_m128_n256_k64_s4");
  for (std::size_t at = 0; (at = text.find('\n', at)) != std::string::npos; at += 2)
    text.insert(at, "\r");
  EXPECT_EQ(row_of(parse_tuning(all_families(), text + "\r\n", kDevice), kProduct),
            "sm90_matmul_m128_n256_k64_s4");
}

TEST(TuningFile, AFileWithoutProblemsIsFine) {
  EXPECT_TRUE(parse_tuning(all_families(), kHead, kDevice).empty());
}

TEST(TuningFile, OtherVersionsAndDevicesAreRefused) {
  EXPECT_EQ(refusal(""), "line 1: expected 'tessera-tuning ...', got the end of the file");
  EXPECT_EQ(refusal("{}"), "line 1: expected 'tessera-tuning ...', got '{}'");
  EXPECT_EQ(refusal("tessera-tuning 2\n"), "line 1: expected version 1, got '2'");
  EXPECT_EQ(refusal("tessera-tuning 1\n"),
            "line 1: expected 'device ...', got the end of the file");
  EXPECT_EQ(refusal("tessera-tuning 1\nfor H200\n"),
            "line 2: expected 'device ...', got 'for H200'");
  EXPECT_EQ(refusal(kHead, "NVIDIA H100"),
            "line 2: measured on 'NVIDIA H200', the device is 'NVIDIA H100'");
  EXPECT_NE(refusal(kHead, "NVIDIA H200 141GB"), "accepted");
}

TEST(TuningFile, EachKindOfBrokenLineIsNamed) {
  EXPECT_EQ(
      refusal(kHead + "sm90_matmul_m128_n256_k64_s4 " + kProduct),
      "line 3: expected a kernel, a tab and a signature, got 'sm90_matmul_m128_n256_k64_s4 matmul "
      "bf16[64x64] * bf16[64x64...'");
  EXPECT_EQ(refusal(kHead + "\n#\nsm90_x\t" + kProduct), "line 5: no kernel is called 'sm90_x'");
  EXPECT_EQ(refusal(kHead + "\t" + kProduct), "line 3: no kernel is called ''");
  EXPECT_EQ(refusal(kHead + "sm90_merge_r8\t" + kProduct),
            "line 3: sm90_merge_r8 is not a kernel for matmul");
  EXPECT_EQ(refusal(kHead + "sm90_merge_r8\t"), "line 3: expected a problem's signature, got ''");
  EXPECT_EQ(refusal(kHead + "sm90_merge_r8\tfly to the moon"),
            "line 3: expected a problem's signature, got 'fly to the moon'");
  EXPECT_EQ(refusal(kHead + kLine + "\nsm90_matmul_m128_n128_k64_s5\t" + kProduct + "\n"),
            "line 4: repeats the problem of line 3: '" + kProduct + "'");
  EXPECT_EQ(refusal(kHead + "#" + std::string(2000, 'x') + "\n"),
            "line 3: expected at most 1024 characters, got 2001");
}

TEST(TuningFile, OnlyPrintableAsciiIsAccepted) {
  EXPECT_EQ(refusal(kHead + "sm90_\x01"), "line 3: expected printable ASCII, got other bytes");
  EXPECT_EQ(refusal(kHead + "# caf\xc3\xa9\n"),
            "line 3: expected printable ASCII, got other bytes");
  EXPECT_EQ(refusal(kHead + std::string(1, '\0')),
            "line 3: expected printable ASCII, got other bytes");
  EXPECT_EQ(refusal("\x7f"
                    "ELF\n"),
            "line 1: expected printable ASCII, got other bytes");
  EXPECT_EQ(refusal(kHead + kLine + "\r\r\n"), "line 3: expected printable ASCII, got other bytes");
}

TEST(TuningFile, TooManyProblemsAreRefused) {
  std::string text = kHead;
  for (int i = 0; i <= 65536; ++i)
    text += "sm90_matmul_m128_n256_k64_s4\tmatmul " + std::to_string(i) + "\n";
  EXPECT_EQ(refusal(text), "line 65539: more than 65536 problems");
}

TEST(TuningFile, NamesOfDevicesBecomeFileNames) {
  EXPECT_EQ(tuning_file_name("NVIDIA H200"), "NVIDIA-H200.tuning");
  EXPECT_EQ(tuning_file_name("CPU: AVX-512, 8 threads"), "CPU-AVX-512-8-threads.tuning");
  EXPECT_EQ(tuning_file_name("../../etc/passwd"), "etc-passwd.tuning");
  EXPECT_EQ(tuning_file_name("..."), "device.tuning");
  EXPECT_EQ(tuning_file_name("X (rev. 2)"), "X-rev-2.tuning");
  EXPECT_EQ(tuning_file_name(""), "device.tuning");
  EXPECT_EQ(tuning_file_name(std::string(5000, 'x')).size(), 107u);
  EXPECT_EQ(tuning_file_name(std::string("a\0b", 3)), "a-b.tuning");
}

TEST(TuningFile, ItsStateInWords) {
  TuningFile file;
  EXPECT_EQ(to_string(file), "none");
  file.path = "/x.tuning";
  EXPECT_EQ(to_string(file), "/x.tuning: not found");
  file.found = true, file.problems = 1;
  EXPECT_EQ(to_string(file), "/x.tuning: in use (1 problem)");
  file.problems = 2;
  EXPECT_EQ(to_string(file), "/x.tuning: in use (2 problems)");
  file.ignored = "line 7: no";
  EXPECT_EQ(to_string(file), "/x.tuning: ignored: line 7: no");
}

}  // namespace
