#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace tessera::tool {

/// A colour by its role; the theme defines the actual colours.
enum class Ink : std::uint8_t { paper, panel, line, muted, text, first, second };
enum class Anchor : std::uint8_t { start, middle, end };

/// A picture of rectangles and text. One unit is a CSS pixel.
struct Picture {
  struct Rect {
    double x, y, width, height;
    Ink ink;
    double strength;  // opacity: 0 shows the paper, 1 the ink
  };
  struct Text {
    double x, y;  // of the baseline
    std::string words;
    double size;
    Ink ink;
    Anchor anchor;
  };

  double width = 0, height = 0;
  std::string title;  ///< description for screen readers
  std::vector<std::variant<Rect, Text>> items;

  void rect(double x, double y, double w, double h, Ink ink, double strength = 1) {
    items.push_back(Rect{x, y, w, h, ink, strength});
  }
  void text(double x, double y, std::string words, double size = 12, Ink ink = Ink::text,
            Anchor anchor = Anchor::start) {
    items.push_back(Text{x, y, std::move(words), size, ink, anchor});
  }
};

/// Escapes text for HTML and XML, including attributes.
std::string escape(const std::string& text);

/// The colours of all inks as CSS variables, for light and dark mode.
std::string theme_css();

/// The picture as SVG. `standalone`: a file that includes the theme; otherwise an element for a
/// page that includes it.
std::string to_svg(const Picture& picture, bool standalone);

}  // namespace tessera::tool
