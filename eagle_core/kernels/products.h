// Products of a few rows with packed weights: what the forms of weights have in common.
//
// Every output element is one chain of sums over the inputs in their order. A panel is 32 output columns.

#pragma once

#include "vectors.h"

namespace {

constexpr int kPanel = 2 * kHalf;  // columns of a panel

// Calls Table<R>::run for a number of rows R that is known at run time, 1 to Most.
template <template <int> class Table, int Most, class... Args>
inline void with_rows(int n, Args... args) {
  if constexpr (Most > 0) {
    if (n == Most)
      Table<Most>::run(args...);
    else
      with_rows<Table, Most - 1>(n, args...);
  }
}

// Rows in groups of like size, none above ``most``.
inline int group_size(int64_t n_rows, int most) {
  const int64_t n_groups = (n_rows + most - 1) / most;
  return static_cast<int>((n_rows + n_groups - 1) / n_groups);
}

// Up to this many rows have their sums made beside each other: weights come from memory once for all of them, part by
// part of the panel, and the second group of rows finds a part in the nearest cache. More rows take turns.
constexpr int kTogether = 28;
constexpr int64_t kPart = 64;  // inputs
inline int together_of(int64_t n_rows, int most) {
  return group_size(n_rows, n_rows > kTogether ? most : kTogether);
}

// What is added to a product: a bias per column, then numbers of the shape of the result; either may be missing.
struct Added {
  const float* bias;
  const float* rows;
};

inline void write(float* to, const Floats sums[2], const float* bias, const float* added,
                  int64_t n_columns) {
  Floats low = sums[0], high = sums[1];
  if (n_columns == kPanel) {
    if (bias) low += load(bias), high += load(bias + kHalf);
    if (added) low += load(added), high += load(added + kHalf);
    store(to, low);
    store(to + kHalf, high);
    return;
  }
  float rest[kPanel];
  store(rest, low);
  store(rest + kHalf, high);
  for (int64_t j = 0; j < n_columns; ++j) {
    const float value = rest[j] + (bias ? bias[j] : 0.0f);
    to[j] = added ? value + added[j] : value;
  }
}

// Writes one panel's columns of ``n_rows`` rows of a result that is n_out wide.
inline void write_panel(float* out, const Floats found[][2], Added added, int64_t n_rows, int64_t n_out,
                        int64_t p) {
  const int64_t first = p * kPanel, left = n_out - first;
  for (int64_t r = 0; r < n_rows; ++r)
    write(out + r * n_out + first, found[r], added.bias ? added.bias + first : nullptr,
          added.rows ? added.rows + r * n_out + first : nullptr, left < kPanel ? left : kPanel);
}

inline Added from_row(Added added, int64_t row, int64_t n_out) {
  return {added.bias, added.rows ? added.rows + row * n_out : nullptr};
}

inline Floats silu(Floats x) { return x / (exponential(Floats{} - x) + 1.0f); }

// silu(x gate) * (x up) into ``middle``, then middle down into ``out``. Gate and up panels alternate; n_mid is
// a multiple of the panel.
inline void write_gated(float* middle, Floats gate[][2], Floats up[][2], int64_t n_rows, int64_t n_mid,
                        int64_t p) {
  for (int64_t r = 0; r < n_rows; ++r)
#pragma GCC unroll 16
    for (int half = 0; half < 2; ++half)
      store(middle + r * n_mid + p * kPanel + half * kHalf, silu(gate[r][half]) * up[r][half]);
}

}  // namespace
