#include <utility>

#include "apps/tessera/demo.hpp"
#include "apps/tessera/figures.hpp"
#include "apps/tessera/places.hpp"
#include "apps/tessera/table.hpp"

namespace tessera::tool {

namespace {

constexpr const char* kStyle = R"(
body{margin:0 auto;max-width:880px;padding:20px 16px 48px;background:var(--paper);color:var(--text);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
h1{font-size:1.6rem;line-height:1.2;margin:.4em 0 .2em}
h2{font-size:1.15rem;margin:1.8em 0 .4em}
p{margin:.4em 0}
a{color:var(--first)}
.muted{color:var(--muted)}
.note{font-size:.875rem;margin-top:.9em}
.cards,.figures{display:grid;gap:14px}
.cards{grid-template-columns:repeat(auto-fit,minmax(220px,1fr));margin:18px 0}
.figures{align-items:start;grid-template-columns:repeat(auto-fit,minmax(min(100%,330px),1fr))}
.card,figure{background:var(--panel);border:1px solid var(--line);border-radius:10px;margin:0}
.card{padding:14px 16px}
.card b{display:block;font-size:2rem;line-height:1.2;color:var(--first)}
figure{background:var(--paper);padding:4px}
svg{display:block;width:100%;max-width:440px;height:auto;margin:0 auto}
table{border-collapse:collapse;width:100%;max-width:520px;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:7px 10px;border-bottom:1px solid var(--line)}
th{color:var(--muted);font-weight:600}
td:first-child{text-align:left;padding-left:0;color:var(--muted)}
)";

std::string tag(const std::string& name, const std::string& contents) {
  return "<" + name + ">" + contents + "</" + name + ">";
}

std::string card(const DemoPart& part) {
  return "<div class=\"card\"><b>" + fixed(part.speed_up(), 1) + "×</b>faster " +
         escape(part.name) + "<div class=\"muted\">blocks: " + part.share_text() + "</div></div>\n";
}

// A row per number and a column per operation, narrow enough for a phone.
std::string table(const DemoResult& result) {
  using Cell = std::string (*)(const DemoPart&);
  static const std::vector<std::pair<const char*, Cell>> kRows{
      {"Dense", [](const DemoPart& p) { return ms_text(p.dense.ms); }},
      {"Block-sparse", [](const DemoPart& p) { return ms_text(p.sparse.ms); }},
      {"Speed-up", [](const DemoPart& p) { return fixed(p.speed_up(), 1) + "×"; }},
      {"Blocks", [](const DemoPart& p) { return p.share_text(); }},
      {"Max error", [](const DemoPart& p) { return brief(p.max_error); }},
      {"Allowed", [](const DemoPart& p) { return brief(p.budget); }},
      {"Check", [](const DemoPart& p) { return std::string(p.ok ? "ok" : "WRONG"); }}};
  std::string head = tag("th", "");
  for (const DemoPart& part : result.parts) head += tag("th", escape(part.name));
  std::string rows = tag("tr", head) + "\n";
  for (const auto& [title, cell] : kRows) {
    std::string cells = tag("td", title);
    for (const DemoPart& part : result.parts) cells += tag("td", escape(cell(part)));
    rows += tag("tr", cells) + "\n";
  }
  return tag("table", rows) + "\n";
}

std::string figures(const DemoPart& part) {
  // The time if skipped blocks saved their full share of the dense time.
  const double ideal = part.dense.ms * part.blocks.density();
  const Picture bars =
      bar_figure({{"dense", ms_text(part.dense.ms), part.dense.ms, Ink::second},
                  {"block-sparse", ms_text(part.sparse.ms), part.sparse.ms, Ink::first},
                  {"dense time x " + part.kept + " share", ms_text(ideal), ideal, Ink::muted}},
                 "Time of one run");
  return tag("h2", escape(part.name)) + tag("p", escape(part.shape + "; " + part.pattern + ".")) +
         "\n<div class=\"figures\">" +
         tag("figure",
             to_svg(pattern_figure(part.blocks, "Which blocks are " + part.kept, part.kept),
                    false)) +
         tag("figure", to_svg(bars, false)) + "</div>\n";
}

// A link to a page of the documentation if `folder` is in the source tree, else its name and path.
std::string doc(const std::string& path, const std::string& words,
                const std::filesystem::path& folder) {
  const std::filesystem::path tree = source_tree();
  if (tree.empty() || !(folder / "").string().starts_with((tree / "").string()))
    return escape(words) + " (" + escape(path) + ")";
  const std::string address = std::filesystem::relative(tree / path, folder).string();
  return "<a href=\"" + escape(address) + "\">" + escape(words) + "</a>";
}

std::string explanations(const DemoResult& result, const std::filesystem::path& folder) {
  std::string next;
  for (const std::string& command : result.next)
    next += (next.empty() ? "" : ", or ") + tag("code", escape(command));
  return tag("h2", "What this shows") +
         tag("p",
             "<b>Attention</b> with a block mask: queries and keys are divided into blocks of 64.\n"
             "A query sees only the keys in its visible blocks; the other blocks are neither read\n"
             "nor computed.") +
         tag("p",
             "<b>BSR</b> (block sparse row): a matrix is divided into equal blocks, and only the\n"
             "blocks that are not zero are stored, row by row, each with its column. The product\n"
             "computes only with the stored blocks.") +
         tag("h2", "Next") + tag("p", "Run " + next + ".") +
         tag("p", "Read the " + doc("README.md", "README", folder) + ", the " +
                      doc("docs/formats.md", "two sparse formats", folder) + ", the " +
                      doc("docs/python.md", "Python package", folder) + " and " +
                      doc("docs/measuring.md", "how times and errors are measured", folder) + ".") +
         "\n";
}

}  // namespace

std::string demo_page(const DemoResult& result, const std::filesystem::path& folder) {
  std::string page =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"/>\n"
      "<title>tessera demo</title>\n<style>" +
      theme_css() + kStyle + "</style>\n</head>\n<body>\n";
  page += tag("h1", "Skip the work that the pattern leaves out");
  page +=
      tag("p", escape("Made by tessera " + result.version + " (tessera demo) on " + result.device +
                      ", backend " + result.backend + ", " + result.date + "." +
                      (result.idle_gpus.empty() ? "" : " Not used: " + result.idle_gpus + ".")));
  page += "\n<div class=\"cards\">";
  for (const DemoPart& part : result.parts) page += card(part);
  page += "</div>\n" + table(result);
  page +=
      "<p class=\"muted note\">Times are medians of alternating runs. The error is that of the "
      "element that uses the largest share of its error budget, in rows sampled from both runs and "
      "compared with double precision.</p>\n";
  for (const DemoPart& part : result.parts) page += figures(part);
  page += explanations(result, folder);
  return page + "</body>\n</html>\n";
}

}  // namespace tessera::tool
