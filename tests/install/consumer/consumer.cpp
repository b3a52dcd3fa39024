// A user's program: a product, an explanation, and an error that is caught.
#include <cstdio>
#include <string>
#include <tessera/tessera.hpp>

int main() {
  const float a[] = {1, 2, 3, 4}, b[] = {5, 6, 7, 8};
  float out[4] = {};
  tessera::MatmulProblem problem;
  problem.a = tessera::tensor(a, tessera::DType::f32, {2, 2});
  problem.b = tessera::tensor(b, tessera::DType::f32, {2, 2});
  problem.out = tessera::tensor(out, tessera::DType::f32, {2, 2});
  tessera::matmul(problem);
  if (out[0] != 19 || out[1] != 22 || out[2] != 43 || out[3] != 50) {
    std::printf("wrong product: %g %g %g %g\n", double{out[0]}, double{out[1]}, double{out[2]},
                double{out[3]});
    return 1;
  }

  const auto explanation = tessera::explain(problem, tessera::device_preset("cpu"));
  if (!explanation.supported || tessera::to_json(explanation).empty()) return 2;

  problem.out = tessera::tensor(out, tessera::DType::f32, {4, 1});
  try {
    tessera::matmul(problem);
  } catch (const tessera::Error& error) {
    const bool told = error.code() == tessera::ErrorCode::invalid_argument &&
                      std::string(error.what()).find("out") != std::string::npos;
    std::printf("tessera %s: %s\n", TESSERA_VERSION_STRING, error.what());
    return told ? 0 : 3;
  }
  return 4;
}
