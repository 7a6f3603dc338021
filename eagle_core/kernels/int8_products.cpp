// Products of a few rows with weights in 8 bits.
//
// Panels hold blocks of 64 inputs: weights plus 128 in groups of four inputs of a column, 16 columns and then
// the other 16, and behind them one scale per column. Inputs are rounded to 8 bits as well, one scale per
// row and block; products within a block are whole numbers, so that they are exact in any order.

#include "products.h"

#include <vector>
#if defined(__AVX512VNNI__)
#include <immintrin.h>
#endif

namespace {

typedef int8_t Bytes __attribute__((vector_size(16), aligned(1), may_alias));

constexpr int64_t kBlock = 64;                       // inputs with one scale
constexpr int64_t kQuads = kBlock / 4;               // groups of four inputs in a block
constexpr int64_t kBlockWeights = kBlock * kPanel;   // bytes
constexpr int64_t kBlockBytes = kBlockWeights + kPanel * 4;
#if defined(__AVX512F__)
constexpr int kInt8Rows = 7;  // rows at once: 14 sums of 32 registers, and their scaled sums
#else
constexpr int kInt8Rows = 2;
#endif

inline int64_t n_blocks_of(int64_t n_in) { return (n_in + kBlock - 1) / kBlock; }

// sums[i] += four products of unsigned bytes of column i with the signed bytes of one word.
inline Signed dot(Signed sums, Words weights, int32_t inputs) {
#if defined(__AVX512VNNI__)
  return (Signed)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)weights, _mm512_set1_epi32(inputs));
#else
  const Signed words = (Signed)weights;
  for (int byte = 0; byte < 4; ++byte) {
    const int32_t x = static_cast<int8_t>(inputs >> (8 * byte));
    sums += ((words >> (8 * byte)) & 0xff) * x;
  }
  return sums;
#endif
}

// Rows of inputs in 8 bits: x is about scale * bytes, block by block; zero behind the last input.
struct Rounded {
  std::vector<int8_t> bytes;   // [rows, blocks * kBlock]
  std::vector<float> scales;   // [rows, blocks]
  std::vector<int32_t> start;  // [rows, blocks]: what the 128 added to each weight adds up to, negated
  int64_t n_blocks = 0;

  void round(const float* x, int64_t n_rows, int64_t n_in, int n_threads) {
    n_blocks = n_blocks_of(n_in);
    const size_t count = static_cast<size_t>(n_rows * n_blocks);
    if (scales.size() < count) bytes.resize(count * kBlock), scales.resize(count), start.resize(count);
#pragma omp parallel for schedule(static) num_threads(n_rows * n_in > 65536 ? n_threads : 1)
    for (int64_t item = 0; item < static_cast<int64_t>(count); ++item) {
      const int64_t row = item / n_blocks, first = item % n_blocks * kBlock;
      round_block(x + row * n_in + first, n_in - first < kBlock ? n_in - first : kBlock, item);
    }
  }

 private:
  void round_block(const float* x, int64_t count, int64_t item) {
    float values[kBlock] = {};
    std::memcpy(values, x, count * sizeof(float));
    Floats highest = {};
    for (int64_t i = 0; i < kBlock; i += kHalf) {
      const Floats v = load(values + i), size = v < Floats{} ? Floats{} - v : v;
      highest = size > highest ? size : highest;
    }
    float lanes[kHalf];
    store(lanes, highest);
    for (int width = kHalf / 2; width; width /= 2)
      for (int i = 0; i < width; ++i) lanes[i] = lanes[i + width] > lanes[i] ? lanes[i + width] : lanes[i];
    const float most = lanes[0];
    const Floats magic = Floats{} + 12582912.0f;  // rounds to whole numbers, as in exponential()
    const float inverse = most > 0.0f ? 127.0f / most : 0.0f;
    int8_t* to = bytes.data() + item * kBlock;
    Signed total = {};
    for (int64_t i = 0; i < kBlock; i += kHalf) {
      const Signed whole = __builtin_convertvector((load(values + i) * inverse + magic) - magic, Signed);
      total += whole;
      const Bytes small = __builtin_convertvector(whole, Bytes);
      std::memcpy(to + i, &small, kHalf);
    }
    int32_t sum = 0;
#pragma GCC unroll 16
    for (int i = 0; i < kHalf; ++i) sum += total[i];
    scales[item] = most / 127.0f;
    start[item] = -128 * sum;
  }
};

// sums[r][0..31] += x[row + r] . panel over one block of 64 inputs, for R rows.
template <int R>
struct Int8Block {
  static void run(const char* panel, const Rounded* rounded, int64_t row, int64_t b, Floats sums[][2]) {
    const Rounded& x = *rounded;
    const int64_t n_blocks = x.n_blocks, first = row * n_blocks + b;
    const int64_t stride = n_blocks * kBlock;
    constexpr int kPointers = (R + 2) / 3;
    const int8_t* rows[kPointers];
#pragma GCC unroll 16
    for (int i = 0; i < kPointers; ++i) rows[i] = x.bytes.data() + first * kBlock + 3 * i * stride;
    Signed whole[R][2];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
      whole[r][0] = whole[r][1] = Signed{} + x.start[first + r * n_blocks];
#pragma GCC unroll 16
    for (int64_t q = 0; q < kQuads; ++q) {
      __builtin_prefetch(panel + q * 128 + 4096);
      __builtin_prefetch(panel + q * 128 + 4160);
      const Words low = *reinterpret_cast<const Words*>(panel + q * 128);
      const Words high = *reinterpret_cast<const Words*>(panel + q * 128 + 64);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        int32_t four;
        std::memcpy(&four, rows[r / 3] + r % 3 * stride + q * 4, 4);
        whole[r][0] = dot(whole[r][0], low, four);
        whole[r][1] = dot(whole[r][1], high, four);
      }
    }
    const float* scales = reinterpret_cast<const float*>(panel + kBlockWeights);
    const Floats low = load(scales), high = load(scales + kHalf);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const float scale = x.scales[first + r * n_blocks];
      sums[r][0] += __builtin_convertvector(whole[r][0], Floats) * (low * scale);
      sums[r][1] += __builtin_convertvector(whole[r][1], Floats) * (high * scale);
    }
  }
};

// found[r][0..31] = x[first + r] . panel, for up to kTogether rows.
inline void product_int8(const char* panel, const Rounded& x, int64_t first, int64_t n_rows,
                         Floats found[][2]) {
  for (int64_t r = 0; r < n_rows; ++r) found[r][0] = found[r][1] = Floats{};
  const int group = group_size(n_rows, kInt8Rows);
  for (int64_t b = 0; b < x.n_blocks; ++b, panel += kBlockBytes)
    for (int64_t row = 0; row < n_rows; row += group) {
      const int n = static_cast<int>(n_rows - row < group ? n_rows - row : group);
      with_rows<Int8Block, kInt8Rows>(n, panel, &x, first + row, b, found + row);
    }
}

Rounded& rounded_inputs() {
  static thread_local Rounded rounded;
  return rounded;
}

void linear_int8(const char* packed, const float* x, Added added, float* out, int64_t n_rows,
                 int64_t n_in, int64_t n_out, int n_threads) {
  Rounded& inputs = rounded_inputs();
  inputs.round(x, n_rows, n_in, n_threads);
  const int64_t n_panels = (n_out + kPanel - 1) / kPanel;
  const int together = together_of(n_rows, kInt8Rows);
#pragma omp parallel for schedule(static) num_threads(n_threads)
  for (int64_t p = 0; p < n_panels; ++p) {
    const char* panel = packed + p * inputs.n_blocks * kBlockBytes;
    for (int64_t row = 0; row < n_rows; row += together) {
      const int64_t n = n_rows - row < together ? n_rows - row : together;
      Floats sums[kTogether][2];
      product_int8(panel, inputs, row, n, sums);
      write_panel(out + row * n_out, sums, from_row(added, row, n_out), n, n_out, p);
    }
  }
}

inline Floats widened(const uint16_t* from) {
  typedef uint16_t Halves __attribute__((vector_size(32), aligned(2), may_alias));
  const Halves narrow = *reinterpret_cast<const Halves*>(from);
  return (Floats)(__builtin_convertvector(narrow, Words) << 16);
}
inline Floats widened(const float* from) { return load(from); }

// Rounds weights [n_out, n_in] to 8 bits; columns and inputs that are not there count as 0.
template <class Number>
void pack_int8(const Number* from, char* packed, int64_t n_in, int64_t n_out, int n_threads) {
  const int64_t n_panels = (n_out + kPanel - 1) / kPanel, n_blocks = n_blocks_of(n_in);
  const Floats magic = Floats{} + 12582912.0f;  // rounds to whole numbers, as in exponential()
#pragma omp parallel for num_threads(n_threads)
  for (int64_t item = 0; item < n_panels * n_blocks; ++item) {
    const int64_t first_column = item / n_blocks * kPanel, first = item % n_blocks * kBlock;
    const int64_t count = n_in - first < kBlock ? n_in - first : kBlock;
    char* to = packed + item * kBlockBytes;
    float* scales = reinterpret_cast<float*>(to + kBlockWeights);
    for (int64_t j = 0; j < kPanel; ++j) {
      const int64_t column = first_column + j;
      Number numbers[kBlock] = {};
      if (column < n_out) std::memcpy(numbers, from + column * n_in + first, count * sizeof(Number));
      Floats values[kBlock / kHalf], highest = {};
      for (int64_t i = 0; i < kBlock / kHalf; ++i) {
        const Floats v = values[i] = widened(numbers + i * kHalf), size = v < Floats{} ? Floats{} - v : v;
        highest = size > highest ? size : highest;
      }
      float most = 0.0f;
      for (int i = 0; i < kHalf; ++i) most = highest[i] > most ? highest[i] : most;
      scales[j] = most / 127.0f;
      const float inverse = most > 0.0f ? 127.0f / most : 0.0f;
      for (int64_t i = 0; i < kBlock / kHalf; ++i) {
        const Signed whole = __builtin_convertvector((values[i] * inverse + magic) - magic, Signed) + 128;
        const Bytes small = __builtin_convertvector(whole, Bytes);
        for (int64_t q = 0; q < kHalf / 4; ++q)
          std::memcpy(to + (i * kHalf / 4 + q) * 128 + j * 4, reinterpret_cast<const char*>(&small) + q * 4, 4);
      }
    }
  }
}

void gated_mlp_int8(const char* gate_up, const char* down, const float* x, const float* added,
                    float* middle, float* out, int64_t n_rows, int64_t n_in, int64_t n_mid, int64_t n_out,
                    int n_threads) {
  Rounded& inputs = rounded_inputs();
  inputs.round(x, n_rows, n_in, n_threads);
  const int together = together_of(n_rows, kInt8Rows);
  const int64_t bytes = inputs.n_blocks * kBlockBytes;
#pragma omp parallel for schedule(static) num_threads(n_threads)
  for (int64_t p = 0; p < n_mid / kPanel; ++p) {
    const char* panel = gate_up + 2 * p * bytes;
    for (int64_t row = 0; row < n_rows; row += together) {
      const int64_t n = n_rows - row < together ? n_rows - row : together;
      Floats gate[kTogether][2], up[kTogether][2];
      product_int8(panel, inputs, row, n, gate);
      product_int8(panel + bytes, inputs, row, n, up);
      write_gated(middle + row * n_mid, gate, up, n, n_mid, p);
    }
  }
  linear_int8(down, middle, {nullptr, added}, out, n_rows, n_mid, n_out, n_threads);
}

}  // namespace

extern "C" {

int eagle_has_fast_int8() {
#if defined(__AVX512VNNI__)
  return 1;
#else
  return 0;
#endif
}

int64_t eagle_int8_bytes(int64_t n_in, int64_t n_out) {
  return (n_out + kPanel - 1) / kPanel * n_blocks_of(n_in) * kBlockBytes;
}

void eagle_pack_int8(const void* weight, int is_narrow, void* packed, int64_t n_in, int64_t n_out, int n_threads) {
  char* to = static_cast<char*>(packed);
  if (is_narrow)
    pack_int8(static_cast<const uint16_t*>(weight), to, n_in, n_out, n_threads);
  else
    pack_int8(static_cast<const float*>(weight), to, n_in, n_out, n_threads);
}

// Weight k of column j.
float eagle_int8_weight(const void* packed, int64_t j, int64_t k, int64_t n_in) {
  const char* block = static_cast<const char*>(packed) + (j / kPanel * n_blocks_of(n_in) + k / kBlock) * kBlockBytes;
  const int64_t c = j % kPanel, q = k % kBlock, place = q / 4 * 128 + c / kHalf * 64 + c % kHalf * 4 + q % 4;
  const int whole = static_cast<int>(static_cast<uint8_t>(block[place])) - 128;
  return static_cast<float>(whole) * reinterpret_cast<const float*>(block + kBlockWeights)[c];
}

void eagle_linear_int8(const void* packed, const float* x, const float* bias, const float* rows, float* out,
                       int64_t n_rows, int64_t n_in, int64_t n_out, int n_threads) {
  linear_int8(static_cast<const char*>(packed), x, {bias, rows}, out, n_rows, n_in, n_out, n_threads);
}

void eagle_gated_mlp_int8(const void* gate_up, const void* down, const float* x, const float* rows, float* middle,
                          float* out, int64_t n_rows, int64_t n_in, int64_t n_mid, int64_t n_out, int n_threads) {
  gated_mlp_int8(static_cast<const char*>(gate_up), static_cast<const char*>(down), x, rows, middle, out, n_rows,
                 n_in, n_mid, n_out, n_threads);
}

}  // extern "C"
