#include <algorithm>
#include <array>
#include <charconv>
#include <string>
#include <vector>

#include <tessera/plan.hpp>

#include "src/select/json_writer.hpp"

namespace tessera {
namespace {

std::string three_digits(double value) {
  char buffer[64];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::general, 3);
  return {buffer, end.ptr};
}

/// "1.5 MB": decimal prefixes, three significant digits.
std::string with_unit(double value, const std::string& unit) {
  constexpr std::array kPrefixes{"", "k", "M", "G", "T", "P"};
  std::size_t i = 0;
  while (value >= 999.5 && i + 1 < kPrefixes.size()) {
    value /= 1000;
    ++i;
  }
  return three_digits(value) + " " + kPrefixes[i] + unit;
}

std::string bytes_text(double bytes) { return with_unit(bytes, "B"); }

std::string milliseconds(double ms) {
  if (ms >= 1000) return "about " + three_digits(ms / 1000) + " s";
  return ms < 1 ? "about " + three_digits(ms * 1000) + " us" : "about " + three_digits(ms) + " ms";
}

/// The rejected rows of one family, summarized by the row with the fewest reasons.
struct Refusal {
  std::string family;
  const Candidate* nearest = nullptr;
  int rows = 0;  // rejected rows
  int all = 0;   // all rows
};

/// The families with rejected rows, the nearest miss first.
std::vector<Refusal> refusals(const std::vector<Candidate>& candidates) {
  std::vector<Refusal> found;
  for (const Candidate& c : candidates) {
    if (c.expanded_bytes > 0) continue;  // another product, which the row supports
    auto at = std::find_if(found.begin(), found.end(),
                           [&](const Refusal& r) { return r.family == c.family; });
    if (at == found.end()) at = found.insert(found.end(), {c.family});
    ++at->all;
    if (c.reasons.empty()) continue;
    ++at->rows;
    if (!at->nearest || c.reasons.size() < at->nearest->reasons.size()) at->nearest = &c;
  }
  std::erase_if(found, [](const Refusal& r) { return r.rows == 0; });
  // Families for another device, and backends without a kernel, come last.
  const auto other_device = [](const Refusal& r) {
    const std::string& reason = r.nearest->reasons.front();
    return reason.starts_with("runs on a") || reason.starts_with("no kernel for");
  };
  std::stable_sort(found.begin(), found.end(), [&](const Refusal& a, const Refusal& b) {
    if (other_device(a) != other_device(b)) return other_device(b);
    return a.nearest->reasons.size() < b.nearest->reasons.size();
  });
  return found;
}

std::string padded(std::string text, std::size_t width) {
  text.resize(std::max(text.size(), width), ' ');
  return text;
}

/// ", expanded to a dense copy of 152 MB"; empty without copies.
std::string expanded_text(std::int64_t bytes) {
  if (bytes == 0) return {};
  return ", expanded to a dense copy of " + bytes_text(static_cast<double>(bytes));
}

std::string plan_text(const Plan& plan) {
  std::string line = plan.kernel_name + ", " + milliseconds(plan.predicted_ms);
  if (plan.threads > 0) line += ", threads " + std::to_string(plan.threads);
  line += ", workspace " + bytes_text(static_cast<double>(plan.workspace_bytes));
  line += ", schedule " + bytes_text(static_cast<double>(plan.schedule_bytes));
  return line + expanded_text(plan.expanded_bytes);
}

void write(planning::JsonWriter& json, const Plan& plan) {
  json.open('{');
  json.key("op").value(to_string(plan.op));
  json.key("backend").value(to_string(plan.backend));
  json.key("kernel").value(plan.kernel);
  json.key("kernel_name").value(plan.kernel_name);
  json.key("workspace_bytes").value(plan.workspace_bytes);
  json.key("schedule_bytes").value(plan.schedule_bytes);
  json.key("expanded_bytes").value(plan.expanded_bytes);
  json.key("threads").value(plan.threads);
  json.key("predicted_ms").value(plan.predicted_ms);
  json.key("signature").value(plan.signature);
  json.close('}');
}

void write(planning::JsonWriter& json, const Candidate& candidate) {
  json.open('{');
  json.key("backend").value(to_string(candidate.backend));
  json.key("family").value(candidate.family);
  json.key("kernel");
  candidate.kernel.empty() ? json.null() : json.value(candidate.kernel);
  json.key("why").value(candidate.why);
  json.key("accepted").value(candidate.reasons.empty());
  json.key("predicted_ms");
  candidate.reasons.empty() ? json.value(candidate.predicted_ms) : json.null();
  json.key("expanded_bytes").value(candidate.expanded_bytes);
  json.key("reasons").open('[');
  for (const std::string& reason : candidate.reasons) json.value(reason);
  json.close(']').close('}');
}

}  // namespace

std::string to_text(const Explanation& e) {
  std::string text = "problem   " + e.problem + "\n";
  text += "device    " + e.device + "\n";
  text +=
      "work      " + with_unit(e.useful_flops, "FLOP") + ", " + bytes_text(e.bytes) + " to move\n";
  text +=
      "chosen    " + (e.supported ? plan_text(e.plan) : "no kernel supports this problem") + "\n";
  if (e.supported) {
    text += std::string("chosen by ") + (e.chosen_by == ChosenBy::cost_model ? "the " : "") +
            to_string(e.chosen_by) + "\n";
    text += "because   " + e.candidates.front().why + "\n";
  }
  const std::vector<Refusal> refused = refusals(e.candidates);
  std::size_t width = 0;
  for (const Candidate& c : e.candidates)
    if (c.reasons.empty()) width = std::max(width, c.kernel.size());
  for (const Refusal& r : refused) width = std::max(width, r.family.size());
  for (const Candidate& c : e.candidates) {
    if (c.reasons.empty())
      text += "accepted  " + padded(c.kernel, width) + "  " + milliseconds(c.predicted_ms) +
              expanded_text(c.expanded_bytes) + "\n";
  }
  for (const Refusal& r : refused) {
    text += "rejected  " + padded(r.family, width) + "  ";
    if (r.rows < r.all) text += std::to_string(r.rows) + " of " + std::to_string(r.all) + " rows: ";
    for (std::size_t i = 0; i < r.nearest->reasons.size(); ++i)
      text += (i > 0 ? "; " : "") + r.nearest->reasons[i];
    text += "\n";
  }
  return text;
}

std::string to_json(const Explanation& e) {
  planning::JsonWriter json;
  json.open('{');
  json.key("op").value(to_string(e.op));
  json.key("problem").value(e.problem);
  json.key("device").value(e.device);
  json.key("supported").value(e.supported);
  json.key("useful_flops").value(e.useful_flops);
  json.key("bytes").value(e.bytes);
  json.key("chosen_by");
  e.supported ? json.value(to_string(e.chosen_by)) : json.null();
  json.key("plan");
  e.supported ? write(json, e.plan) : static_cast<void>(json.null());
  json.key("candidates").open('[');
  for (const Candidate& candidate : e.candidates) write(json, candidate);
  json.close(']').close('}');
  return json.text();
}

}  // namespace tessera
