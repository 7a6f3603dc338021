// Attention of a few queries: see attention.h.

#include "attention.h"
#include "vectors.h"

namespace {

using eagle::Attention;
using eagle::kQueries;
using eagle::Rows;

// For fewer queries, or fewer products, putting keys in blocks takes longer than it saves.
constexpr int64_t kBlockedQueries = 24, kBlockedScores = 24576;

// How many queries are taken at once, so that the threads are done soonest: a group of n takes about 3 + n.
int64_t queries_at_once(int64_t n_queries, int64_t n_heads, int n_threads) {
  int64_t best = 1, least = INT64_MAX;
  for (const int64_t n : {1, 2, 3, kQueries}) {
    const int64_t n_groups = n_heads * ((n_queries + n - 1) / n);
    const int64_t time = (n_groups + n_threads - 1) / n_threads * (3 + n);
    if (n <= kQueries && time <= least) least = time, best = n;
  }
  return best;
}

// Keys first to first + 15 of one head, [d, 16]; those from ``n_keys`` on are zero.
void block_keys(const Rows& keys, int64_t head, int64_t first, int64_t n_keys, int64_t head_dim, float* to) {
  Floats numbers[kHalf];
  for (int64_t i = 0; i < head_dim; i += kHalf) {
#pragma GCC unroll 16
    for (int j = 0; j < kHalf; ++j)
      numbers[j] = first + j < n_keys ? load(keys.at(head, first + j) + i) : Floats{};
    transpose(numbers);
#pragma GCC unroll 16
    for (int j = 0; j < kHalf; ++j) store(to + (i + j) * kHalf, numbers[j]);
  }
}

constexpr int64_t kWidest = 256;  // numbers of a head; build.py
eagle::Attend provided[kWidest / kHalf + 1] = {};

}  // namespace

extern "C" {

// From now on heads of this size are attended to by this function, eagle_attend() of attend.cpp.
void eagle_provide_attention(int64_t head_dim, void* attend) {
  provided[head_dim / kHalf] = reinterpret_cast<eagle::Attend>(attend);
}

// mask: additive [n_rows, n_keys], or null: each row sees the keys up to its own, the last rows. out: [n_rows, n_heads * head_dim].
void eagle_attention(const float* query, int64_t query_head, int64_t query_row, const float* keys,
                     int64_t key_head, int64_t key_row, const float* values, int64_t value_head,
                     int64_t value_row, const float* mask, int64_t mask_row, float* out,
                     int64_t n_rows, int64_t n_keys, int64_t n_heads, int64_t n_kv_heads,
                     int64_t head_dim, float scale, int n_threads) {
  std::vector<std::vector<int32_t>> seen(n_rows);
  std::vector<int64_t> lead(n_rows);
  for (int64_t r = 0; r < n_rows && !mask; ++r) lead[r] = n_keys - n_rows + r + 1;
#pragma omp parallel for schedule(static) num_threads(n_rows * n_keys > 16384 ? n_threads : 1)
  for (int64_t r = 0; r < (mask ? n_rows : 0); ++r) {
    const float* row = mask + r * mask_row;
    int64_t k = 0;
    while (k < n_keys && row[k] > -1e30f) ++k;
    lead[r] = k;
    for (; k < n_keys; ++k)
      if (row[k] > -1e30f) seen[r].push_back(static_cast<int32_t>(k));
  }
  const Rows all_keys = {keys, key_head, key_row};
  const int64_t n_sharing = n_heads / n_kv_heads, n_queries = n_rows * n_sharing;
  int64_t n_blocks = 0;  // of keys that a group of queries may have in common
  if (n_queries >= kBlockedQueries && n_queries * n_keys >= kBlockedScores)
    for (int64_t r = 0; r < n_rows; ++r)
      n_blocks = lead[r] > n_blocks * kHalf ? (lead[r] + kHalf - 1) / kHalf : n_blocks;
  static thread_local std::vector<float> numbers;
  const size_t n_numbers = static_cast<size_t>(n_kv_heads * n_blocks * kHalf * head_dim);
  if (numbers.size() < n_numbers) numbers.resize(n_numbers);
  float* blocks = n_blocks ? numbers.data() : nullptr;
  const eagle::Attend run = provided[head_dim / kHalf];
  const Attention all = {{query, query_head, query_row}, all_keys, {values, value_head, value_row}, out,
                         head_dim, n_heads * head_dim, lead.data(), seen.data(), scale, blocks, n_blocks,
                         n_sharing};
  const int64_t at_once = queries_at_once(n_queries, n_kv_heads, n_threads);
  const int64_t n_groups = (n_queries + at_once - 1) / at_once;
#pragma omp parallel num_threads(n_threads)
  {
    if (blocks) {
#pragma omp for schedule(static)
      for (int64_t item = 0; item < n_kv_heads * n_blocks; ++item)
        block_keys(all_keys, item / n_blocks, item % n_blocks * kHalf, n_keys, head_dim,
                   blocks + item * head_dim * kHalf);
    }
#pragma omp for schedule(static, 1)
    for (int64_t item = 0; item < n_kv_heads * n_groups; ++item) {
      const int64_t first = item % n_groups * at_once, left = n_queries - first;
      run(all, item / n_groups, first, left < at_once ? left : at_once);
    }
  }
}

}  // extern "C"
