#pragma once

#if __cplusplus < 202002L
#error "tessera requires C++20: compile with -std=c++20 or later"
#endif

/// Marks a symbol that the shared library exports. All other symbols are hidden.
#if defined(TESSERA_STATIC)
#define TESSERA_EXPORT
#elif defined(TESSERA_BUILDING)
#define TESSERA_EXPORT __attribute__((visibility("default")))
#else
#define TESSERA_EXPORT
#endif
