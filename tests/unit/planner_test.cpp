// The plans that a thread remembers: always those of the requested shape and execution.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <thread>

#include <tessera/error.hpp>

#include "src/api/planner.hpp"

namespace {

using namespace tessera;            // NOLINT: the test uses many names
using namespace tessera::planning;  // NOLINT

AnyShape product(std::int64_t m, std::int64_t n) {
  MatmulProblem p;
  p.a = tensor(nullptr, DType::f32, {m, 8}), p.b = tensor(nullptr, DType::f32, {8, n});
  p.out = tensor(nullptr, DType::f32, {m, n});
  return shape_of(AnyProblem(p));
}

AnyShape attention(std::int64_t length, bool causal) {
  AttentionProblem p;
  p.q = p.k = p.v = p.out = tensor(nullptr, DType::f32, {1, length, 2, 16});
  p.causal = causal;
  return shape_of(AnyProblem(p));
}

TEST(Planner, GivesThePlanOfEachOfManyShapes) {
  std::mt19937 random(1);
  for (int i = 0; i < 3000; ++i) {
    const auto size = static_cast<std::int64_t>(1 + random() % 40);
    const AnyShape shape = i % 3 ? product(size, static_cast<std::int64_t>(1 + random() % 40))
                                 : attention(size, random() % 2 == 0);
    const auto planned = api::plan_for(shape, {});
    ASSERT_EQ(planned->shape, shape);
    ASSERT_EQ(planned->family->op, op_of(shape));
  }
}

TEST(Planner, RemembersAPlanPerExecution) {
  const AnyShape shape = product(700, 700);
  const auto one = api::plan_for(shape, {.threads = 1});
  EXPECT_EQ(one->threads, 1);
  EXPECT_EQ(api::plan_for(shape, {.threads = 1}), one);
  const auto three = api::plan_for(shape, {.threads = 3});
  EXPECT_EQ(three->threads, 3);
  EXPECT_EQ(api::plan_for(shape, {.threads = 1})->threads, 1);

  Execution forced;
  forced.kernel = one->row->name;
  EXPECT_EQ(api::plan_for(shape, forced)->row, one->row);
  forced.kernel = "no such row";
  EXPECT_THROW(api::plan_for(shape, forced), Error);
  forced = {};
  forced.backend = Backend::sm90;
  EXPECT_THROW(api::plan_for(shape, forced), Error);
  EXPECT_EQ(api::plan_for(shape, {})->shape, shape);
}

TEST(Planner, EachThreadRemembersItsOwn) {
  const AnyShape shape = product(30, 30);
  const auto here = api::plan_for(shape, {});
  std::shared_ptr<const Planned> there;
  std::thread([&] { there = api::plan_for(shape, {}); }).join();
  EXPECT_NE(here, there);
  EXPECT_EQ(here->shape, there->shape);
}

TEST(Planner, ReadsADeviceOnce) {
  EXPECT_EQ(&api::facts_of({}), &api::facts_of({}));
  EXPECT_EQ(api::facts_of({}).kind, DeviceKind::cpu);
  EXPECT_THROW(api::facts_of({DeviceKind::cuda, 99}), Error);
}

}  // namespace
