// Products of a few rows with packed weights, in float32.
//
// Every output element is one chain of fused multiply-adds over the inputs in their order, whatever
// the number of rows, of threads or of other columns: a row computed beside others is bit for bit
// the row computed alone. Compiled on the machine that runs it; see build.py.
//
// The same holds for attention: a row's keys are taken in the order of their positions, wherever in the cache
// a tree has put them.
//
// A panel is 32 output columns: for each input k, 32 weights. bfloat16 panels hold 16 words of 32 bits per
// input, column j in the low half and column 16 + j in the high half.
//
// Int8 panels hold blocks of 64 inputs: weights plus 128 in groups of four inputs of a column, 16 columns and then
// the other 16, and behind them one scale per column. Inputs are rounded to 8 bits as well, one scale per
// row and block; products within a block are whole numbers, so that they are exact in any order.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>
#if defined(__AVX512VNNI__)
#include <immintrin.h>
#endif

namespace {

constexpr int kHalf = 16;         // columns in one vector
constexpr int kPanel = 2 * kHalf;  // columns of a panel
#if defined(__AVX512F__)
constexpr int kRows = 14;  // rows at once: 28 accumulators of 32 registers
#else
constexpr int kRows = 3;
#endif

typedef float Floats __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t Signed __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint32_t Words __attribute__((vector_size(64), aligned(4), may_alias));
typedef int8_t Bytes __attribute__((vector_size(16), aligned(1), may_alias));

inline Floats load(const float* from) { return *reinterpret_cast<const Floats*>(from); }
inline void store(float* to, Floats values) { *reinterpret_cast<Floats*>(to) = values; }

struct Float32Panel {
  static constexpr int64_t bytes_per_input = kPanel * 4;
  static void read(const char* from, Floats& low, Floats& high) {
    low = load(reinterpret_cast<const float*>(from));
    high = load(reinterpret_cast<const float*>(from) + kHalf);
  }
};

struct BFloat16Panel {
  static constexpr int64_t bytes_per_input = kPanel * 2;
  static void read(const char* from, Floats& low, Floats& high) {
    const Words both = *reinterpret_cast<const Words*>(from);
    low = (Floats)(both << 16);
    high = (Floats)(both & 0xffff0000u);
  }
};

// sums[r][0..31] += x[r][0..count) . panel, for R rows that lie ``stride`` apart.
template <class Panel, int R>
void multiply(const char* panel, const float* x, int64_t stride, int64_t count, Floats found[][2]) {
  Floats sums[R][2];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) sums[r][0] = found[r][0], sums[r][1] = found[r][1];
  // One pointer for three rows: as many as there are registers for, with addresses the processor can add up.
  constexpr int kPointers = (R + 2) / 3;
  const float* rows[kPointers];
#pragma GCC unroll 16
  for (int i = 0; i < kPointers; ++i) rows[i] = x + 3 * i * stride;
  for (int64_t k = 0; k < count; ++k) {
    __builtin_prefetch(panel + 4096);
    Floats low, high;
    Panel::read(panel, low, high);
    panel += Panel::bytes_per_input;
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const float a = rows[r / 3][r % 3 * stride];
      sums[r][0] += a * low;
      sums[r][1] += a * high;
    }
#pragma GCC unroll 16
    for (int i = 0; i < kPointers; ++i) ++rows[i];
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) found[r][0] = sums[r][0], found[r][1] = sums[r][1];
}

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

template <class Panel>
struct Product {
  template <int R>
  struct Of {
    static void run(const char* panel, const float* x, int64_t stride, int64_t count,
                    Floats found[][2]) {
      multiply<Panel, R>(panel, x, stride, count, found);
    }
  };

  // found[r][0..31] = x[r] . panel, for up to kTogether rows.
  static void run(const char* panel, const float* x, int64_t n_rows, int64_t n_in, Floats found[][2]) {
    for (int64_t r = 0; r < n_rows; ++r) found[r][0] = found[r][1] = Floats{};
    const int group = group_size(n_rows, kRows);
    const int64_t part = n_rows > group ? kPart : n_in;
    for (int64_t k = 0; k < n_in; k += part) {
      const int64_t count = n_in - k < part ? n_in - k : part;
      for (int64_t row = 0; row < n_rows; row += group) {
        const int n = static_cast<int>(n_rows - row < group ? n_rows - row : group);
        with_rows<Of, kRows>(n, panel + k * Panel::bytes_per_input, x + row * n_in + k, n_in, count,
                             found + row);
      }
    }
  }
};

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

template <class Panel>
void linear(const char* packed, const float* x, Added added, float* out, int64_t n_rows, int64_t n_in,
            int64_t n_out, int n_threads) {
  const int64_t n_panels = (n_out + kPanel - 1) / kPanel;
  const int together = together_of(n_rows, kRows);
#pragma omp parallel for schedule(static) num_threads(n_threads)
  for (int64_t p = 0; p < n_panels; ++p) {
    const char* panel = packed + p * n_in * Panel::bytes_per_input;
    for (int64_t row = 0; row < n_rows; row += together) {
      const int64_t n = n_rows - row < together ? n_rows - row : together;
      Floats sums[kTogether][2];
      Product<Panel>::run(panel, x + row * n_in, n, n_in, sums);
      write_panel(out + row * n_out, sums, from_row(added, row, n_out), n, n_out, p);
    }
  }
}

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

template <class Panel>
void pack(const char* weight, char* packed, int64_t n_in, int64_t n_out, int n_threads);

template <>
void pack<Float32Panel>(const char* weight, char* packed, int64_t n_in, int64_t n_out,
                        int n_threads) {
  const float* from = reinterpret_cast<const float*>(weight);
  float* to = reinterpret_cast<float*>(packed);
  const int64_t n_panels = (n_out + kPanel - 1) / kPanel;
#pragma omp parallel for num_threads(n_threads)
  for (int64_t p = 0; p < n_panels; ++p)
    for (int64_t k = 0; k < n_in; ++k)
      for (int64_t j = 0; j < kPanel; ++j) {
        const int64_t column = p * kPanel + j;
        to[(p * n_in + k) * kPanel + j] = column < n_out ? from[column * n_in + k] : 0.0f;
      }
}

template <>
void pack<BFloat16Panel>(const char* weight, char* packed, int64_t n_in, int64_t n_out,
                         int n_threads) {
  const uint16_t* from = reinterpret_cast<const uint16_t*>(weight);
  uint32_t* to = reinterpret_cast<uint32_t*>(packed);
  const int64_t n_panels = (n_out + kPanel - 1) / kPanel;
#pragma omp parallel for num_threads(n_threads)
  for (int64_t p = 0; p < n_panels; ++p) {
    uint32_t* panel = to + p * n_in * kHalf;
    // Pairs of inputs of 16 columns each, as words, are turned into columns of words.
    int64_t k = 0;
    for (; (p + 1) * kPanel <= n_out && k + kPanel <= n_in; k += kPanel) {
      Floats low[kHalf], high[kHalf];
      for (int64_t j = 0; j < kHalf; ++j) {
        const uint16_t* column = from + (p * kPanel + j) * n_in + k;
        low[j] = load(reinterpret_cast<const float*>(column));
        high[j] = load(reinterpret_cast<const float*>(column + kHalf * n_in));
      }
      transpose(low), transpose(high);
      for (int64_t i = 0; i < kHalf; ++i) {
        const Words a = (Words)low[i], b = (Words)high[i];
        uint32_t* pair = panel + (k + 2 * i) * kHalf;
        store(reinterpret_cast<float*>(pair), (Floats)((a & 0xffffu) | (b << 16)));
        store(reinterpret_cast<float*>(pair + kHalf), (Floats)((a >> 16) | (b & 0xffff0000u)));
      }
    }
    for (; k < n_in; ++k)
      for (int64_t j = 0; j < kHalf; ++j) {
        const int64_t low = p * kPanel + j, high = low + kHalf;
        const uint32_t a = low < n_out ? from[low * n_in + k] : 0u;
        const uint32_t b = high < n_out ? from[high * n_in + k] : 0u;
        panel[k * kHalf + j] = a | (b << 16);
      }
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

template <class Panel>
void gated_mlp(const char* gate_up, const char* down, const float* x, const float* added, float* middle,
               float* out, int64_t n_rows, int64_t n_in, int64_t n_mid, int64_t n_out, int n_threads) {
  const int together = together_of(n_rows, kRows);
  const int64_t bytes = n_in * Panel::bytes_per_input;
#pragma omp parallel for schedule(static) num_threads(n_threads)
  for (int64_t p = 0; p < n_mid / kPanel; ++p) {
    const char* panel = gate_up + 2 * p * bytes;
    for (int64_t row = 0; row < n_rows; row += together) {
      const int64_t n = n_rows - row < together ? n_rows - row : together;
      Floats gate[kTogether][2], up[kTogether][2];
      Product<Panel>::run(panel, x + row * n_in, n, n_in, gate);
      Product<Panel>::run(panel + bytes, x + row * n_in, n, n_in, up);
      write_gated(middle + row * n_mid, gate, up, n, n_mid, p);
    }
  }
  linear<Panel>(down, middle, {nullptr, added}, out, n_rows, n_mid, n_out, n_threads);
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

inline float sum_lanes(Floats v) {
  float lanes[kHalf];
  store(lanes, v);
  for (int width = kHalf / 2; width; width /= 2)
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  return lanes[0];
}

void rms_norm(const float* x, const float* weight, float* out, int64_t n_rows, int64_t n,
              float epsilon) {
  for (int64_t row = 0; row < n_rows; ++row, x += n, out += n) {
    Floats squares = {};
    for (int64_t i = 0; i < n; i += kHalf) squares += load(x + i) * load(x + i);
    const float scale = 1.0f / std::sqrt(sum_lanes(squares) / n + epsilon);
    for (int64_t i = 0; i < n; i += kHalf) store(out + i, load(weight + i) * (load(x + i) * scale));
  }
}

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

struct Rows {
  const float* data;
  int64_t head_stride, row_stride;
  const float* at(int64_t head, int64_t row) const {
    return data + head * head_stride + row * row_stride;
  }
};

// Natural logarithm of positive numbers, to about 2 units in the last place.
inline Floats logarithm(Floats x) {
  const Words bits = (Words)x;
  Words exponent = (bits >> 23) - 126;
  Floats m = (Floats)((bits & 0x007fffffu) | 0x3f000000u);  // [0.5, 1)
  const auto is_small = m < (Floats{} + 0.707106781f);
  m = is_small ? m + m : m;
  exponent = is_small ? exponent - 1 : exponent;
  const Floats r = m - 1.0f;
  Floats p = Floats{} + 7.0376836292e-2f;
  p = p * r - 1.1514610310e-1f;
  p = p * r + 1.1676998740e-1f;
  p = p * r - 1.2420140846e-1f;
  p = p * r + 1.4249322787e-1f;
  p = p * r - 1.6668057665e-1f;
  p = p * r + 2.0000714765e-1f;
  p = p * r - 2.4999993993e-1f;
  p = p * r + 3.3333331174e-1f;
  const Floats n = __builtin_convertvector((Signed)exponent, Floats);
  Floats y = p * r * (r * r) + n * -2.12194440e-4f - 0.5f * (r * r);
  return r + y + n * 0.693359375f;
}

inline uint64_t mix(uint64_t value) {
  value *= 0x9E3779B97F4A7C15u;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
  return value ^ (value >> 31);
}

// The token that arrives first in an exponential race; token i's time is hashed from (key << 32) + i.
int64_t race(const float* probabilities, int64_t n, uint64_t key) {
  float best = -1.0f;
  int64_t winner = 0;
  for (int64_t i = 0; i < n; i += kHalf) {
    const int64_t count = n - i < kHalf ? n - i : kHalf;
    uint32_t hashed[kHalf];
#pragma GCC ivdep
    for (int j = 0; j < kHalf; ++j)
      hashed[j] = static_cast<uint32_t>(mix((key << 32) + static_cast<uint64_t>(i + j)));
    float p[kHalf] = {}, low[kHalf], high[kHalf];
    for (int64_t j = 0; j < count; ++j) p[j] = probabilities[i + j];
    for (int j = 0; j < kHalf; ++j) {
      low[j] = (static_cast<float>(hashed[j]) + 0.5f) * 0x1p-32f;    // u
      high[j] = (static_cast<float>(~hashed[j]) + 0.5f) * 0x1p-32f;  // 1 - u, exact where it is small
    }
    const Floats u = load(low), rest = load(high), v = 1.0f - u;
    const Floats near = v == (Floats{} + 1.0f) ? u : logarithm(v) * u / (v - 1.0f);
    const Floats time = u < (Floats{} + 0.5f) ? near : Floats{} - logarithm(rest);
    const Floats speed = load(p) / time;
    for (int64_t j = 0; j < count; ++j)
      if (speed[j] > best) best = speed[j], winner = i + j;
  }
  return winner;
}

// Highest of n numbers, and the sum of e^(x - highest): no number if one of them is none.
struct Softmax {
  float highest = -INFINITY, total = 0.0f;

  Softmax(const float* x, int64_t n) {
    const int64_t whole = n / kHalf * kHalf;
    Floats most = Floats{} - INFINITY;
    for (int64_t i = 0; i < whole; i += kHalf) {
      const Floats next = load(x + i);
      most = next > most ? next : most;
    }
    for (int j = 0; j < kHalf; ++j) highest = most[j] > highest ? most[j] : highest;
    for (int64_t i = whole; i < n; ++i) highest = x[i] > highest ? x[i] : highest;
    Floats sums = {};
    for (int64_t i = 0; i < whole; i += kHalf) sums += exponential(load(x + i) - highest);
    if (whole < n) {
      float rest[kHalf];
      for (int j = 0; j < kHalf; ++j) rest[j] = whole + j < n ? x[whole + j] : -INFINITY;
      sums += exponential(load(rest) - highest);
    }
    total = sum_lanes(sums);
  }
};

// The first of the highest logits, and its probability.
int64_t likeliest(const float* logits, int64_t n, float* probability) {
  const Softmax all(logits, n);
  int64_t winner = 0;
  while (winner < n - 1 && logits[winner] != all.highest) ++winner;
  *probability = 1.0f / all.total;
  return winner;
}

inline bool any(Signed lanes) {
  int64_t words[8], found = 0;
  std::memcpy(words, &lanes, sizeof words);
  for (int i = 0; i < 8; ++i) found |= words[i];
  return found != 0;
}

// The k likeliest of n >= k tokens and the logarithms of their probabilities, best first. What is no number is never
// among them unless there is nothing else; it, and what it spoils, counts as kHopeless.
constexpr float kHopeless = -1e9f;
void top(const float* logits, int64_t n, int64_t k, int64_t* ids, float* scores) {
  const Softmax all(logits, n);
  for (int64_t i = 0; i < k; ++i) ids[i] = -1, scores[i] = -INFINITY;
  const auto offer = [&](int64_t token) {
    const float score = logits[token];
    if (!(score > scores[k - 1])) return;
    int64_t place = k - 1;
    for (; place > 0 && score > scores[place - 1]; --place)
      ids[place] = ids[place - 1], scores[place] = scores[place - 1];
    ids[place] = token, scores[place] = score;
  };
  const int64_t whole = n / kHalf * kHalf;
  for (int64_t i = 0; i < whole; i += kHalf)
    if (any((Signed)(load(logits + i) > (Floats{} + scores[k - 1]))))
      for (int64_t j = i; j < i + kHalf; ++j) offer(j);
  for (int64_t j = whole; j < n; ++j) offer(j);
  const float shift = all.highest + std::log(all.total);
  int64_t unused = 0;
  for (int64_t i = 0; i < k; ++i) {
    const float score = scores[i] - shift;
    scores[i] = score > kHopeless ? score : kHopeless;
    if (ids[i] >= 0) continue;
    bool is_taken = true;
    for (; is_taken; ++unused) {
      is_taken = false;
      for (int64_t j = 0; j < k; ++j) is_taken = is_taken || ids[j] == unused;
    }
    ids[i] = unused - 1;
  }
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

// Queries at once: 6 have 24 sums in 32 registers.
#if defined(__AVX512F__)
constexpr int kQueries = 6;
#else
constexpr int kQueries = 2;
#endif
// For fewer queries, or fewer products, putting keys in blocks takes longer than it saves.
constexpr int64_t kBlockedQueries = 24, kBlockedScores = 24576;

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

using Attend = decltype(&attend_some<1>);

Attend attend_for(int64_t head_dim) {
  switch (head_dim) {
    case 16: return attend_some<1>;
    case 32: return attend_some<2>;
    case 48: return attend_some<3>;
    case 64: return attend_some<4>;
    case 80: return attend_some<5>;
    case 96: return attend_some<6>;
    case 128: return attend_some<8>;
    case 256: return attend_some<16>;
    default: return nullptr;
  }
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

}  // namespace

extern "C" {

int eagle_panel_columns() { return kPanel; }

// How the weights of a panel are kept; ops.py.
enum Format { kFloat32, kBFloat16, kInt8 };

int eagle_has_fast_int8() {
#if defined(__AVX512VNNI__)
  return 1;
#else
  return 0;
#endif
}

// Bytes of a packed weight.
int64_t eagle_packed_bytes(int format, int64_t n_in, int64_t n_out) {
  const int64_t n_panels = (n_out + kPanel - 1) / kPanel;
  if (format == kInt8) return n_panels * n_blocks_of(n_in) * kBlockBytes;
  return n_panels * kPanel * n_in * (format == kBFloat16 ? 2 : 4);
}

// weight: [n_out, n_in] in bfloat16 for that format, in float32 for float32; ``is_narrow``: in bfloat16.
void eagle_pack(int format, const void* weight, int is_narrow, void* packed, int64_t n_in, int64_t n_out,
                int n_threads) {
  const char* from = static_cast<const char*>(weight);
  char* to = static_cast<char*>(packed);
  if (format == kInt8 && is_narrow)
    pack_int8(static_cast<const uint16_t*>(weight), to, n_in, n_out, n_threads);
  else if (format == kInt8)
    pack_int8(static_cast<const float*>(weight), to, n_in, n_out, n_threads);
  else if (format == kBFloat16)
    pack<BFloat16Panel>(from, to, n_in, n_out, n_threads);
  else
    pack<Float32Panel>(from, to, n_in, n_out, n_threads);
}

// The weight that a packed one stands for, [n_out, n_in] in float32.
void eagle_unpack(int format, const void* packed, float* weight, int64_t n_in, int64_t n_out,
                  int n_threads) {
  const char* from = static_cast<const char*>(packed);
  const int64_t n_blocks = n_blocks_of(n_in);
#pragma omp parallel for num_threads(n_threads)
  for (int64_t column = 0; column < n_out; ++column) {
    const int64_t p = column / kPanel, j = column % kPanel;
    for (int64_t k = 0; k < n_in; ++k) {
      float value;
      if (format == kInt8) {
        const char* block = from + (p * n_blocks + k / kBlock) * kBlockBytes;
        const int64_t q = k % kBlock, place = q / 4 * 128 + j / kHalf * 64 + j % kHalf * 4 + q % 4;
        const int whole = static_cast<int>(static_cast<uint8_t>(block[place])) - 128;
        value = static_cast<float>(whole) * reinterpret_cast<const float*>(block + kBlockWeights)[j];
      } else if (format == kBFloat16) {
        const uint32_t both = reinterpret_cast<const uint32_t*>(from)[(p * n_in + k) * kHalf + j % kHalf];
        const uint32_t bits = j < kHalf ? both << 16 : both & 0xffff0000u;
        std::memcpy(&value, &bits, 4);
      } else {
        value = reinterpret_cast<const float*>(from)[(p * n_in + k) * kPanel + j];
      }
      weight[column * n_in + k] = value;
    }
  }
}

// bias: [n_out] or null. rows: [n_rows, n_out] that are added to the result, or null.
void eagle_linear(int format, const void* packed, const float* x, const float* bias, const float* rows,
                  float* out, int64_t n_rows, int64_t n_in, int64_t n_out, int n_threads) {
  const char* panels = static_cast<const char*>(packed);
  const Added added = {bias, rows};
  if (format == kInt8)
    linear_int8(panels, x, added, out, n_rows, n_in, n_out, n_threads);
  else if (format == kBFloat16)
    linear<BFloat16Panel>(panels, x, added, out, n_rows, n_in, n_out, n_threads);
  else
    linear<Float32Panel>(panels, x, added, out, n_rows, n_in, n_out, n_threads);
}

void eagle_gated_mlp(int format, const void* gate_up, const void* down, const float* x, const float* rows,
                     float* middle, float* out, int64_t n_rows, int64_t n_in, int64_t n_mid, int64_t n_out,
                     int n_threads) {
  const char* first = static_cast<const char*>(gate_up);
  const char* second = static_cast<const char*>(down);
  if (format == kInt8)
    gated_mlp_int8(first, second, x, rows, middle, out, n_rows, n_in, n_mid, n_out, n_threads);
  else if (format == kBFloat16)
    gated_mlp<BFloat16Panel>(first, second, x, rows, middle, out, n_rows, n_in, n_mid, n_out, n_threads);
  else
    gated_mlp<Float32Panel>(first, second, x, rows, middle, out, n_rows, n_in, n_mid, n_out, n_threads);
}

void eagle_rms_norm(const float* x, const float* weight, float* out, int64_t n_rows, int64_t n,
                    float epsilon) {
  rms_norm(x, weight, out, n_rows, n, epsilon);
}

int64_t eagle_race(const float* probabilities, int64_t n, int64_t key) {
  return race(probabilities, n, static_cast<uint64_t>(key));
}

int64_t eagle_likeliest(const float* logits, int64_t n, float* probability) {
  return likeliest(logits, n, probability);
}

// logits: [n_rows, n]; ids and scores: [n_rows, k].
void eagle_top(const float* logits, int64_t n_rows, int64_t n, int64_t k, int64_t* ids, float* scores,
               int n_threads) {
#pragma omp parallel for schedule(static) num_threads(n_rows > 1 ? n_threads : 1)
  for (int64_t row = 0; row < n_rows; ++row)
    top(logits + row * n, n, k, ids + row * k, scores + row * k);
}

int eagle_can_attend(int64_t head_dim) { return attend_for(head_dim) != nullptr; }

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
  const Attend run = attend_for(head_dim);
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
