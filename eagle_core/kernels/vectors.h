// Vectors of 16 numbers, and what several kernels do with them. Compiled on the machine that runs it; see build.py.
//
// For every kernel: the order of a row's sums depends neither on the number of rows nor on that of threads, so that
// a row computed beside others is bit for bit the row computed alone.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

constexpr int kHalf = 16;         // columns in one vector
typedef float Floats __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t Signed __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint32_t Words __attribute__((vector_size(64), aligned(4), may_alias));

inline Floats load(const float* from) { return *reinterpret_cast<const Floats*>(from); }
inline void store(float* to, Floats values) { *reinterpret_cast<Floats*>(to) = values; }

// Swaps the places of rows and lanes that lie W apart: what is left to do of a transposition, halved each time.
#define SWAP(a, b, ...)                                                        \
  do {                                                                         \
    const Floats first = __builtin_shuffle(a, b, (Words){__VA_ARGS__});        \
    b = __builtin_shuffle(a, b, (Words){__VA_ARGS__} + kApart);                \
    a = first;                                                                 \
  } while (0)

// v[i][j] becomes v[j][i].
inline void transpose(Floats v[kHalf]) {
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    constexpr uint32_t kApart = 8;
    SWAP(v[i], v[i + 8], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
  }
#pragma GCC unroll 16
  for (int i = 0; i < kHalf; ++i) {
    constexpr uint32_t kApart = 4;
    if (!(i & 4)) SWAP(v[i], v[i + 4], 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27);
  }
#pragma GCC unroll 16
  for (int i = 0; i < kHalf; ++i) {
    constexpr uint32_t kApart = 2;
    if (!(i & 2)) SWAP(v[i], v[i + 2], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
  }
#pragma GCC unroll 16
  for (int i = 0; i < kHalf; ++i) {
    constexpr uint32_t kApart = 1;
    if (!(i & 1)) SWAP(v[i], v[i + 1], 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30);
  }
}

// e^x within 2 units in the last place; 0 below -87.
inline Floats exponential(Floats x) {
  const Floats lowest = Floats{} - 87.0f, highest = Floats{} + 88.0f;
  const auto is_low = x < lowest;
  x = is_low ? lowest : x;
  x = x > highest ? highest : x;
  const Floats magic = Floats{} + 12582912.0f;  // 1.5 * 2^23: adding it rounds to whole numbers
  const Floats shifted = x * 1.44269504f + magic;
  const Floats n = shifted - magic;
  const Floats r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  Floats p = Floats{} + 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const Words exponent = ((Words)shifted + (127u - 0x4b400000u)) << 23;
  const Floats result = p * (Floats)exponent;
  return is_low ? Floats{} : result;
}

inline float sum_lanes(Floats v) {
  float lanes[kHalf];
  store(lanes, v);
  for (int width = kHalf / 2; width; width /= 2)
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  return lanes[0];
}

}  // namespace
