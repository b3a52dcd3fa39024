#include <zlib.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>

#include "apps/tessera/font.hpp"
#include "apps/tessera/picture.hpp"

namespace tessera::tool {

namespace {

using Color = std::array<std::uint8_t, 3>;

// The light theme of `theme_css`, in the order of Ink.
constexpr std::array<Color, 7> kColors{{{0xFF, 0xFF, 0xFF},
                                        {0xF3, 0xF5, 0xF8},
                                        {0xD5, 0xDA, 0xE1},
                                        {0x56, 0x60, 0x70},
                                        {0x16, 0x19, 0x1F},
                                        {0x1F, 0x5F, 0xBF},
                                        {0xB4, 0x56, 0x0C}}};

Color color_of(Ink ink) { return kColors[static_cast<std::size_t>(ink)]; }

class Canvas {
 public:
  Canvas(const Picture& picture, int scale)
      : scale_(scale),
        width_(std::max(1, static_cast<int>(std::lround(picture.width * scale)))),
        height_(std::max(1, static_cast<int>(std::lround(picture.height * scale)))),
        pixels_(static_cast<std::size_t>(width_) * static_cast<std::size_t>(height_) * 3, 0xFF) {}

  void draw(const Picture::Rect& rect) {
    const Color color = color_of(rect.ink);
    const int left = pixel(rect.x), right = std::max(left + 1, pixel(rect.x + rect.width));
    const int top = pixel(rect.y), bottom = std::max(top + 1, pixel(rect.y + rect.height));
    if (rect.width <= 0 || rect.height <= 0) return;
    for (int y = top; y < bottom; ++y)
      for (int x = left; x < right; ++x) blend(x, y, color, rect.strength);
  }

  void draw(const Picture::Text& text) {
    // One dot of a letter: letters are 7 dots high, about the height of capitals at this size.
    const int dot = std::max(1, static_cast<int>(std::lround(text.size * scale_ / 10.0)));
    const int advance = (kGlyphWidth + 1) * dot;
    int x = pixel(text.x);
    const int length = advance * static_cast<int>(text.words.size());
    if (text.anchor == Anchor::middle) x -= length / 2;
    if (text.anchor == Anchor::end) x -= length;
    const int top = pixel(text.y) - kGlyphHeight * dot;
    for (const char c : text.words) {
      const Glyph& glyph = glyph_of(c);
      for (int row = 0; row < kGlyphHeight; ++row)
        for (int column = 0; column < kGlyphWidth; ++column)
          if (glyph[static_cast<std::size_t>(row)] >> (kGlyphWidth - 1 - column) & 1)
            fill_dot(x + column * dot, top + row * dot, dot, color_of(text.ink));
      x += advance;
    }
  }

  std::string encode() const {
    std::string raw;  // each line starts with its filter: none
    const auto line = static_cast<std::size_t>(width_) * 3;
    for (int y = 0; y < height_; ++y) {
      raw += '\0';
      raw.append(reinterpret_cast<const char*>(pixels_.data()) + static_cast<std::size_t>(y) * line,
                 line);
    }
    uLongf packed_size = compressBound(raw.size());
    std::string packed(packed_size, '\0');
    if (compress2(reinterpret_cast<Bytef*>(packed.data()), &packed_size,
                  reinterpret_cast<const Bytef*>(raw.data()), raw.size(), 9) != Z_OK)
      throw std::runtime_error("zlib could not compress the picture");
    packed.resize(packed_size);
    const std::string header = big_endian(static_cast<std::uint32_t>(width_)) +
                               big_endian(static_cast<std::uint32_t>(height_)) +
                               std::string("\x08\x02\x00\x00\x00", 5);  // 8 bits, RGB
    return std::string("\x89PNG\r\n\x1a\n", 8) + chunk("IHDR", header) + chunk("IDAT", packed) +
           chunk("IEND", "");
  }

 private:
  int pixel(double units) const { return static_cast<int>(std::lround(units * scale_)); }

  void fill_dot(int left, int top, int size, const Color& color) {
    for (int y = top; y < top + size; ++y)
      for (int x = left; x < left + size; ++x) blend(x, y, color, 1);
  }

  void blend(int x, int y, const Color& color, double strength) {
    if (x < 0 || y < 0 || x >= width_ || y >= height_) return;
    const auto at = (static_cast<std::size_t>(y) * static_cast<std::size_t>(width_) +
                     static_cast<std::size_t>(x)) *
                    3;
    for (std::size_t i = 0; i < 3; ++i)
      pixels_[at + i] = static_cast<std::uint8_t>(
          std::lround(pixels_[at + i] + (color[i] - pixels_[at + i]) * strength));
  }

  static std::string big_endian(std::uint32_t value) {
    std::string bytes;
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift & 0xFF);
    return bytes;
  }

  static std::string chunk(const std::string& type, const std::string& data) {
    const std::string body = type + data;
    const auto sum =
        crc32(0, reinterpret_cast<const Bytef*>(body.data()), static_cast<uInt>(body.size()));
    return big_endian(static_cast<std::uint32_t>(data.size())) + body +
           big_endian(static_cast<std::uint32_t>(sum));
  }

  int scale_, width_, height_;
  std::vector<std::uint8_t> pixels_;
};

}  // namespace

std::string to_png(const Picture& picture, int scale) {
  Canvas canvas(picture, scale);
  for (const auto& item : picture.items)
    std::visit([&](const auto& shape) { canvas.draw(shape); }, item);
  return canvas.encode();
}

}  // namespace tessera::tool
