#include <array>
#include <cmath>
#include <cstdio>

#include "apps/tessera/picture.hpp"

namespace tessera::tool {

namespace {

const char* variable(Ink ink) {
  static constexpr std::array<const char*, 7> kNames{"paper", "panel", "line",  "muted",
                                                     "text",  "first", "second"};
  return kNames[static_cast<std::size_t>(ink)];
}

// Formats with up to two decimals.
std::string number(double value) {
  std::array<char, 32> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "%.2f", value);
  std::string text = buffer.data();
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

std::string text_element(const Picture::Text& text) {
  static constexpr std::array<const char*, 3> kAnchors{"start", "middle", "end"};
  return "<text x=\"" + number(text.x) + "\" y=\"" + number(text.y) + "\" font-size=\"" +
         number(text.size) + "\" text-anchor=\"" + kAnchors[static_cast<std::size_t>(text.anchor)] +
         "\" fill=\"var(--" + variable(text.ink) + ")\">" + escape(text.words) + "</text>\n";
}

}  // namespace

std::string escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        // XML does not allow control characters.
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

std::string theme_css() {
  return ":root{color-scheme:light dark;--paper:#ffffff;--panel:#f3f5f8;--line:#d5dae1;"
         "--muted:#566070;--text:#16191f;--first:#1f5fbf;--second:#b4560c}\n"
         "@media(prefers-color-scheme:dark){:root{--paper:#12151a;--panel:#1b2027;--line:#39414d;"
         "--muted:#9aa5b5;--text:#e8ebf0;--first:#6ea8ff;--second:#f0a35e}}\n";
}

std::string to_svg(const Picture& picture, bool standalone) {
  const std::string size = number(picture.width) + " " + number(picture.height);
  std::string out = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + size +
                    "\" role=\"img\" font-family=\"system-ui,sans-serif\"";
  if (standalone)
    out += " width=\"" + number(picture.width) + "\" height=\"" + number(picture.height) + "\"";
  out += ">\n<title>" + escape(picture.title) + "</title>\n";
  if (standalone) {
    out += "<style>" + theme_css() + "</style>\n";
    out += "<rect width=\"100%\" height=\"100%\" fill=\"var(--paper)\"/>\n";
  }
  // Consecutive rectangles of one ink and strength become one path, as patterns have thousands.
  std::string path;
  const Picture::Rect* last = nullptr;
  auto finish = [&] {
    if (!last) return;
    out += "<path shape-rendering=\"crispEdges\" fill=\"var(--" + std::string(variable(last->ink)) +
           ")\"";
    if (last->strength < 1) out += " fill-opacity=\"" + number(last->strength) + "\"";
    out += " d=\"" + path + "\"/>\n";
    path.clear();
    last = nullptr;
  };
  for (const auto& item : picture.items) {
    if (const auto* text = std::get_if<Picture::Text>(&item)) {
      finish();
      out += text_element(*text);
      continue;
    }
    const auto& rect = std::get<Picture::Rect>(item);
    if (last && (last->ink != rect.ink || last->strength != rect.strength)) finish();
    // Absolute coordinates, so that adjacent edges round to the same number and leave no gap.
    path += "M" + number(rect.x) + " " + number(rect.y) + "H" + number(rect.x + rect.width) + "V" +
            number(rect.y + rect.height) + "H" + number(rect.x) + "z";
    last = &rect;
  }
  finish();
  return out + "</svg>\n";
}

}  // namespace tessera::tool
