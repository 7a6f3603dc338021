// What the attention of every head size has in common: eagle_attention() in attention.cpp prepares it, and leaves the
// queries to attend.cpp, which is compiled for the head sizes that models here have.

#pragma once

#include <cstdint>
#include <vector>

namespace eagle {

struct Rows {
  const float* data;
  int64_t head_stride, row_stride;
  const float* at(int64_t head, int64_t row) const {
    return data + head * head_stride + row * row_stride;
  }
};

struct Attention {
  Rows query, keys, values;
  float* out;
  int64_t out_head, out_row;
  // By row: how many of the first keys it sees without a gap, and which ones after that, by position.
  const int64_t* lead;
  const std::vector<int32_t>* seen;
  float scale;
  // Keys in blocks of 16, [heads, blocks, d, 16]: number i of all of them side by side; or null.
  const float* blocks;
  int64_t n_blocks;
  int64_t n_sharing;  // heads that share keys and values

  // Queries that share keys are counted through all their heads, then through the next row.
  int64_t row_of(int64_t query_number) const { return query_number / n_sharing; }
  int64_t head_of(int64_t kv_head, int64_t query_number) const {
    return kv_head * n_sharing + query_number % n_sharing;
  }
};

// Attention of ``count`` queries, from number ``first`` on, that share the keys of one head.
using Attend = void (*)(const Attention&, int64_t kv_head, int64_t first, int64_t count);

// Queries at once: 6 have 24 sums in 32 registers.
#if defined(__AVX512F__)
constexpr int kQueries = 6;
#else
constexpr int kQueries = 2;
#endif

}  // namespace eagle
