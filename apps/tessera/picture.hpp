#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace tessera::tool {

/// What something is painted with: a role, which the theme turns into a colour.
enum class Ink : std::uint8_t { paper, panel, line, muted, text, first, second };
enum class Anchor : std::uint8_t { start, middle, end };

/// Rectangles and words on a sheet: all that the tool's pictures need. One unit is a CSS pixel.
struct Picture {
  struct Rect {
    double x, y, width, height;
    Ink ink;
    double strength;  // 0 is the paper, 1 the ink
  };
  struct Text {
    double x, y;  // of the baseline
    std::string words;
    double size;
    Ink ink;
    Anchor anchor;
  };

  double width = 0, height = 0;
  std::string title;  ///< said to those who cannot see it
  std::vector<std::variant<Rect, Text>> items;

  void rect(double x, double y, double w, double h, Ink ink, double strength = 1) {
    items.push_back(Rect{x, y, w, h, ink, strength});
  }
  void text(double x, double y, std::string words, double size = 12, Ink ink = Ink::text,
            Anchor anchor = Anchor::start) {
    items.push_back(Text{x, y, std::move(words), size, ink, anchor});
  }
};

/// Text that is safe inside HTML and XML, attributes included.
std::string escape(const std::string& text);

/// The colours of all inks as CSS variables, light and dark.
std::string theme_css();

/// `standalone`: a file of its own, with its theme; else an element for a page that has the theme.
std::string to_svg(const Picture& picture, bool standalone);

}  // namespace tessera::tool
