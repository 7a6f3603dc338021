// Products of a few rows with weights in float32, or in bfloat16 where that holds them exactly; all sums in float32.
//
// For each input a panel holds 32 weights. bfloat16 panels hold 16 words of 32 bits per input, column j in the low half
// and column 16 + j in the high half.

#include "products.h"

namespace {

#if defined(__AVX512F__)
constexpr int kRows = 14;  // rows at once: 28 accumulators of 32 registers
#else
constexpr int kRows = 3;
#endif

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

}  // namespace

#define EXPORT(name, Panel)                                                                                     \
  void eagle_pack_##name(const void* weight, void* packed, int64_t n_in, int64_t n_out, int n_threads) {        \
    pack<Panel>(static_cast<const char*>(weight), static_cast<char*>(packed), n_in, n_out, n_threads);          \
  }                                                                                                             \
  void eagle_linear_##name(const void* packed, const float* x, const float* bias, const float* rows, float* out, \
                           int64_t n_rows, int64_t n_in, int64_t n_out, int n_threads) {                        \
    linear<Panel>(static_cast<const char*>(packed), x, {bias, rows}, out, n_rows, n_in, n_out, n_threads);      \
  }                                                                                                             \
  void eagle_gated_mlp_##name(const void* gate_up, const void* down, const float* x, const float* rows,         \
                              float* middle, float* out, int64_t n_rows, int64_t n_in, int64_t n_mid,           \
                              int64_t n_out, int n_threads) {                                                   \
    gated_mlp<Panel>(static_cast<const char*>(gate_up), static_cast<const char*>(down), x, rows, middle, out,   \
                     n_rows, n_in, n_mid, n_out, n_threads);                                                    \
  }

extern "C" {

EXPORT(float32, Float32Panel)
EXPORT(bfloat16, BFloat16Panel)

}  // extern "C"
