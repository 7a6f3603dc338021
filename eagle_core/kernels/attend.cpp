// Attention of a few queries for heads of HEAD_DIM numbers: a row's keys are taken in the order of their positions,
// wherever in the cache a tree has put them.

#include "attention.h"
#include "vectors.h"

namespace {

using eagle::Attention;
using eagle::kQueries;

// Adds, in groups of W lanes, each even group to the odd one after it: first those of a, then those of b in turn.
#define FOLD(a, b, ...) \
  (__builtin_shuffle(a, b, (Words){__VA_ARGS__}) + __builtin_shuffle(a, b, (Words){__VA_ARGS__} + kFold))

// Lane i of the result: the sum of the lanes of v[i]. Every sum pairs the same distances, 8, 4, 2 and 1.
inline Floats sum_each(Floats v[kHalf]) {
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    constexpr uint32_t kFold = 8;
    v[i] = FOLD(v[i], v[i + 8], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    constexpr uint32_t kFold = 4;
    v[i] = FOLD(v[i], v[i + 4], 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    constexpr uint32_t kFold = 2;
    v[i] = FOLD(v[i], v[i + 2], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
  }
  constexpr uint32_t kFold = 1;
  return FOLD(v[0], v[1], 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30);
}

// Scores of 16 keys, the first ``count`` of them real.
template <int V, class KeyOf>
inline Floats score(const Floats query[V], int64_t count, KeyOf&& key_of) {
  Floats products[kHalf];
#pragma GCC unroll 16
  for (int i = 0; i < kHalf; ++i) {
    const float* key = key_of(i < count ? i : 0);
    Floats product = {};  // not the first product: the compiler could fuse either of two
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) product += query[v] * load(key + v * kHalf);
    products[i] = product;
  }
  return sum_each(products);
}

// Turns scores into weights that still lack their common divisor, which is returned.
inline float soften(float* scores, int64_t count) {
  for (int64_t k = count; k % kHalf; ++k) scores[k] = -INFINITY;
  Floats highest_lanes = load(scores);
  for (int64_t k = kHalf; k < count; k += kHalf) {
    const Floats next = load(scores + k);
    highest_lanes = next > highest_lanes ? next : highest_lanes;
  }
  float highest = highest_lanes[0];
  for (int i = 1; i < kHalf; ++i)
    highest = highest_lanes[i] > highest ? highest_lanes[i] : highest;
  Floats total = {};
  for (int64_t k = 0; k < count; k += kHalf) {
    const Floats weight = exponential(load(scores + k) - highest);
    store(scores + k, weight);
    total += weight;
  }
  return sum_lanes(total);
}

// The keys that one row sees beyond the common ones.
struct OwnKeys {
  int64_t n_common, n_lead;
  const std::vector<int32_t>& further;
  int64_t size() const { return n_lead + static_cast<int64_t>(further.size()); }
  int64_t operator[](int64_t i) const {
    return i < n_lead ? n_common + i : further[static_cast<size_t>(i - n_lead)];
  }
};

// Scores of a block of 16 keys for R rows: the sums that score() makes, in its order, but each lane is a key, so that
// nothing has to be added across lanes. queries: [R, 16 V], scaled. The scores of row r go to to + r * stride.
template <int V, int R>
inline void score_block(const float* block, const float* queries, float* to, int64_t stride) {
  Floats quarter[4][R];  // what is left to add at distances 2 and 1
#pragma GCC unroll 4
  for (int g = 0; g < 4; ++g) {
    Floats sums[R][4] = {};
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v)
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        const Floats key = load(block + (v * kHalf + g + 4 * j) * kHalf);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) sums[r][j] += queries[(r * V + v) * kHalf + g + 4 * j] * key;
      }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) quarter[g][r] = (sums[r][0] + sums[r][2]) + (sums[r][1] + sums[r][3]);
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
    store(to + r * stride, (quarter[0][r] + quarter[2][r]) + (quarter[1][r] + quarter[3][r]));
}

// sums[r] += weights[r][k] * values[k] over the common keys, V parts of 16 at a time.
template <int V, int R>
inline void mix_values(const Attention& a, int64_t kv_head, int64_t count, const float* weights,
                       int64_t stride, int first, Floats found[][R]) {
  Floats sums[V][R] = {};
  for (int64_t k = 0; k < count; ++k) {
    const float* value = a.values.at(kv_head, k) + first * kHalf;
    Floats parts[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) parts[v] = load(value + v * kHalf);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const float weight = weights[r * stride + k];
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) sums[v][r] += weight * parts[v];
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v)
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) found[first + v][r] = sums[v][r];
}

// R queries of heads that share keys; they share the loads of the keys that all of them see.
template <int V, int R>
void attend(const Attention& a, int64_t kv_head, int64_t first) {
  static thread_local std::vector<float> buffer;
  int64_t rows[R], heads[R];
  for (int r = 0; r < R; ++r) rows[r] = a.row_of(first + r), heads[r] = a.head_of(kv_head, first + r);
  int64_t n_common = a.lead[rows[0]];
  for (int r = 1; r < R; ++r) n_common = a.lead[rows[r]] < n_common ? a.lead[rows[r]] : n_common;
  const auto own_of = [&](int r) {
    return OwnKeys{n_common, a.lead[rows[r]] - n_common, a.seen[rows[r]]};
  };
  int64_t most = 0;
  for (int r = 0; r < R; ++r) most = own_of(r).size() > most ? own_of(r).size() : most;
  const int64_t width = (n_common + most + 2 * kHalf) / kHalf * kHalf;
  if (static_cast<int64_t>(buffer.size()) < width * R) buffer.resize(width * R);
  float* scores = buffer.data();
  float queries[R * V * kHalf];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v)
      store(queries + (r * V + v) * kHalf, load(a.query.at(heads[r], rows[r]) + v * kHalf) * a.scale);
  const auto score_rows = [&](float* to, int r, int64_t count, auto&& key_of) {
    Floats query[V];
    for (int v = 0; v < V; ++v) query[v] = load(queries + (r * V + v) * kHalf);
    for (int64_t k = 0; k < count; k += kHalf)
      store(to + k, score<V>(query, count - k, [&](int i) { return key_of(k + i); }));
  };
  if (a.blocks) {
    const float* block = a.blocks + kv_head * a.n_blocks * V * kHalf * kHalf;
    for (int64_t k = 0; k < n_common; k += kHalf, block += V * kHalf * kHalf)
      score_block<V, R>(block, queries, scores + k, width);
  } else {
    for (int r = 0; r < R; ++r)
      score_rows(scores + r * width, r, n_common, [&](int64_t k) { return a.keys.at(kv_head, k); });
  }
  float total[R];
  for (int r = 0; r < R; ++r) {
    const OwnKeys own = own_of(r);
    float* row = scores + r * width;
    score_rows(row + n_common, r, own.size(), [&](int64_t k) { return a.keys.at(kv_head, own[k]); });
    total[r] = soften(row, n_common + own.size());
  }
  Floats sums[V][R];
  constexpr int kParts = V < 4 ? V : 4;
#pragma GCC unroll 4
  for (int v = 0; v + kParts <= V; v += kParts)
    mix_values<kParts, R>(a, kv_head, n_common, scores, width, v, sums);
  if constexpr (V % kParts != 0)
    mix_values<V % kParts, R>(a, kv_head, n_common, scores, width, V - V % kParts, sums);
  for (int r = 0; r < R; ++r) {
    const OwnKeys own = own_of(r);
    for (int64_t k = 0; k < own.size(); ++k) {
      const float* value = a.values.at(kv_head, own[k]);
      const float weight = scores[r * width + n_common + k];
      for (int v = 0; v < V; ++v) sums[v][r] += weight * load(value + v * kHalf);
    }
    float* out = a.out + heads[r] * a.out_head + rows[r] * a.out_row;
    for (int v = 0; v < V; ++v) store(out + v * kHalf, sums[v][r] * (1.0f / total[r]));
  }
}

template <int V>
void attend_some(const Attention& a, int64_t kv_head, int64_t first, int64_t count) {
  while (count > 0) {
    const int n = count >= kQueries ? kQueries : count >= 3 ? 3 : static_cast<int>(count);
    if (n == kQueries)
      attend<V, kQueries>(a, kv_head, first);
    else if (n == 3)
      attend<V, 3>(a, kv_head, first);
    else if (n == 2)
      attend<V, 2>(a, kv_head, first);
    else
      attend<V, 1>(a, kv_head, first);
    first += n, count -= n;
  }
}

}  // namespace

extern "C" void eagle_attend(const eagle::Attention& attention, int64_t kv_head, int64_t first, int64_t count) {
  attend_some<HEAD_DIM / kHalf>(attention, kv_head, first, count);
}
