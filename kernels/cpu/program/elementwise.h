// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_PROGRAM_ELEMENTWISE_H_
#define DEEPPCR_KERNELS_CPU_PROGRAM_ELEMENTWISE_H_

// The elementwise operations of step programs on vectors, one specialisation each.

#include "kernels/cpu/program/kernels.h"
#include "kernels/cpu/program/row_vectors.h"
#include "kernels/cpu/simd/activations.h"
#include "kernels/cpu/simd/elementary.h"
#include "kernels/cpu/simd/powers.h"
#include "kernels/cpu/simd/sine_cosine.h"

namespace deeppcr::cpu::DEEPPCR_CPU_ISA {

using program::Op;

// Value and slopes of an operation on one vector per operand.
template <Op op>
struct Lanes;

// Operations that are activations, whose functions take several vectors at a time.
template <Activation activation>
struct ActivationLanes {
  static constexpr Activation kActivation = activation;
  static DEEPPCR_INLINE Wide Value(const Wide* a) {
    Wide x[1] = {a[0]};
    Activate(activation, x);
    return x[0];
  }
  static DEEPPCR_INLINE void Slopes(const Wide* a, Wide* s) {
    Wide x[1] = {a[0]};
    Differentiate(activation, x);
    s[0] = x[0];
  }
};
template <>
struct Lanes<Op::kTanh> : ActivationLanes<Activation::kTanh> {};
template <>
struct Lanes<Op::kSigmoid> : ActivationLanes<Activation::kSigmoid> {};
template <>
struct Lanes<Op::kSilu> : ActivationLanes<Activation::kSilu> {};
template <>
struct Lanes<Op::kGelu> : ActivationLanes<Activation::kGelu> {};
template <>
struct Lanes<Op::kGeluTanh> : ActivationLanes<Activation::kGeluTanh> {};
template <>
struct Lanes<Op::kRelu> : ActivationLanes<Activation::kRelu> {};
template <>
struct Lanes<Op::kLeakyRelu> : ActivationLanes<Activation::kLeakyRelu> {};
template <>
struct Lanes<Op::kElu> : ActivationLanes<Activation::kElu> {};
template <>
struct Lanes<Op::kSoftplus> : ActivationLanes<Activation::kSoftplus> {};
template <>
struct Lanes<Op::kMish> : ActivationLanes<Activation::kMish> {};

template <>
struct Lanes<Op::kNegate> {
  static DEEPPCR_INLINE Wide Value(const Wide* a) { return -a[0]; }
  static DEEPPCR_INLINE void Slopes(const Wide*, Wide* s) { s[0] = All(-1.0F); }
};
template <>
struct Lanes<Op::kAbs> {
  static DEEPPCR_INLINE Wide Value(const Wide* a) { return Abs(a[0]); }
  static DEEPPCR_INLINE void Slopes(const Wide* a, Wide* s) {
    s[0] = SelectEqual(a[0], All(0.0F), All(0.0F), WithSignOf(a[0], All(1.0F)));
  }
};
template <>
struct Lanes<Op::kSquare> {
  static DEEPPCR_INLINE Wide Value(const Wide* a) { return a[0] * a[0]; }
  static DEEPPCR_INLINE void Slopes(const Wide* a, Wide* s) { s[0] = a[0] + a[0]; }
};
template <>
struct Lanes<Op::kReciprocal> {
  static DEEPPCR_INLINE Wide Value(const Wide* a) { return All(1.0F) / a[0]; }
  static DEEPPCR_INLINE void Slopes(const Wide* a, Wide* s) {
    const Wide inverse = All(1.0F) / a[0];
    s[0] = -(inverse * inverse);
  }
};
template <>
struct Lanes<Op::kSqrt> {
  static DEEPPCR_INLINE Wide Value(const Wide* a) { return Sqrt(a[0]); }
  static DEEPPCR_INLINE void Slopes(const Wide* a, Wide* s) { s[0] = All(0.5F) / Sqrt(a[0]); }
};
template <>
struct Lanes<Op::kExp> {
  static DEEPPCR_INLINE Wide Value(const Wide* a) { return Exp(a[0]); }
  static DEEPPCR_INLINE void Slopes(const Wide* a, Wide* s) { s[0] = Exp(a[0]); }
};
template <>
struct Lanes<Op::kLog> {
  static DEEPPCR_INLINE Wide Value(const Wide* a) { return Log(a[0]); }
  static DEEPPCR_INLINE void Slopes(const Wide* a, Wide* s) { s[0] = All(1.0F) / a[0]; }
};
template <>
struct Lanes<Op::kSin> {
  static DEEPPCR_INLINE Wide Value(const Wide* a) { return Sine(a[0]); }
  static DEEPPCR_INLINE void Slopes(const Wide* a, Wide* s) { s[0] = Cosine(a[0]); }
};
template <>
struct Lanes<Op::kCos> {
  static DEEPPCR_INLINE Wide Value(const Wide* a) { return Cosine(a[0]); }
  static DEEPPCR_INLINE void Slopes(const Wide* a, Wide* s) { s[0] = -Sine(a[0]); }
};
template <>
struct Lanes<Op::kAtan> {
  static DEEPPCR_INLINE Wide Value(const Wide* a) { return Atan(a[0]); }
  static DEEPPCR_INLINE void Slopes(const Wide* a, Wide* s) {
    s[0] = All(1.0F) / Fma(a[0], a[0], All(1.0F));
  }
};
template <>
struct Lanes<Op::kErf> {
  static DEEPPCR_INLINE Wide Value(const Wide* a) { return Erf(a[0]); }
  static DEEPPCR_INLINE void Slopes(const Wide* a, Wide* s) {
    s[0] = Exp(-(a[0] * a[0])) * All(1.12837917F);  // 2 / sqrt(pi)
  }
};
template <>
struct Lanes<Op::kExpMinusOne> {
  // e^a - 1 = -e^a (e^-a - 1): nothing cancels on either side.
  static DEEPPCR_INLINE Wide Value(const Wide* a) {
    const Wide below = ExpMinusOneOfNegative(-Abs(a[0]));
    return SelectGreater(a[0], All(0.0F), -(Exp(a[0]) * below), below);
  }
  static DEEPPCR_INLINE void Slopes(const Wide* a, Wide* s) { s[0] = Exp(a[0]); }
};
template <>
struct Lanes<Op::kFloor> {
  static DEEPPCR_INLINE Wide Value(const Wide* a) { return Floor(a[0]); }
  static DEEPPCR_INLINE void Slopes(const Wide*, Wide* s) { s[0] = All(0.0F); }
};
template <>
struct Lanes<Op::kAdd> {
  static DEEPPCR_INLINE Wide Value(const Wide* a) { return a[0] + a[1]; }
  static DEEPPCR_INLINE void Slopes(const Wide*, Wide* s) { s[0] = s[1] = All(1.0F); }
};
template <>
struct Lanes<Op::kSubtract> {
  static DEEPPCR_INLINE Wide Value(const Wide* a) { return a[0] - a[1]; }
  static DEEPPCR_INLINE void Slopes(const Wide*, Wide* s) {
    s[0] = All(1.0F);
    s[1] = All(-1.0F);
  }
};
template <>
struct Lanes<Op::kMultiply> {
  static DEEPPCR_INLINE Wide Value(const Wide* a) { return a[0] * a[1]; }
  static DEEPPCR_INLINE void Slopes(const Wide* a, Wide* s) {
    s[0] = a[1];
    s[1] = a[0];
  }
};
template <>
struct Lanes<Op::kDivide> {
  static DEEPPCR_INLINE Wide Value(const Wide* a) { return a[0] / a[1]; }
  static DEEPPCR_INLINE void Slopes(const Wide* a, Wide* s) {
    s[0] = All(1.0F) / a[1];
    s[1] = -(a[0] / a[1]) / a[1];
  }
};
// Of equal values each counts half, as in kernels/program/elementwise.h; a NaN is kept.
template <>
struct Lanes<Op::kMaximum> {
  static DEEPPCR_INLINE Wide Value(const Wide* a) {
    return SelectEqual(a[1], a[1], Max(a[0], a[1]), a[1]);
  }
  static DEEPPCR_INLINE void Slopes(const Wide* a, Wide* s) {
    const Wide one = All(1.0F), zero = All(0.0F);
    s[0] = SelectGreater(a[0], a[1], one, SelectEqual(a[0], a[1], All(0.5F), zero));
    s[1] = one - s[0];
  }
};
template <>
struct Lanes<Op::kMinimum> {
  static DEEPPCR_INLINE Wide Value(const Wide* a) {
    return SelectEqual(a[1], a[1], Min(a[0], a[1]), a[1]);
  }
  static DEEPPCR_INLINE void Slopes(const Wide* a, Wide* s) {
    const Wide one = All(1.0F), zero = All(0.0F);
    s[0] = SelectGreater(a[1], a[0], one, SelectEqual(a[0], a[1], All(0.5F), zero));
    s[1] = one - s[0];
  }
};
template <>
struct Lanes<Op::kPower> {
  static DEEPPCR_INLINE Wide Value(const Wide* a) { return Power(a[0], a[1]); }
  static DEEPPCR_INLINE void Slopes(const Wide* a, Wide* s) {
    s[0] = PowerSlopeByBase(a[0], a[1]);
    s[1] = PowerSlopeByExponent(a[0], a[1]);
  }
};
template <>
struct Lanes<Op::kLess> {
  static DEEPPCR_INLINE Wide Value(const Wide* a) {
    return SelectGreater(a[1], a[0], All(1.0F), All(0.0F));
  }
  static DEEPPCR_INLINE void Slopes(const Wide*, Wide* s) { s[0] = s[1] = All(0.0F); }
};
template <>
struct Lanes<Op::kEqual> {
  static DEEPPCR_INLINE Wide Value(const Wide* a) {
    return SelectEqual(a[0], a[1], All(1.0F), All(0.0F));
  }
  static DEEPPCR_INLINE void Slopes(const Wide*, Wide* s) { s[0] = s[1] = All(0.0F); }
};
template <>
struct Lanes<Op::kSelect> {
  static DEEPPCR_INLINE Wide Value(const Wide* a) {
    return SelectEqual(a[0], All(0.0F), a[2], a[1]);
  }
  // Of the condition: what a change of side changes. Its tangents are zero, but for probes.
  static DEEPPCR_INLINE void Slopes(const Wide* a, Wide* s) {
    s[0] = a[1] - a[2];
    s[1] = SelectEqual(a[0], All(0.0F), All(0.0F), All(1.0F));
    s[2] = All(1.0F) - s[1];
  }
};

// A long run of elementary functions is all latency: four vectors at a time.
template <Op op>
void ValueOf(const float* const* a, float* y, int64_t n) {
  constexpr int K = program::RowOf(op).operands;
  ForChunks(n, [&]<int M>(int64_t at) {
    if constexpr (requires { Lanes<op>::kActivation; }) {
      Chunk<M> x = Chunk<M>::Of(a[0] + at);
      Activate(Lanes<op>::kActivation, x.v);
      return x.To(y + at);
    }
    Wide out[M];
#pragma GCC unroll 4
    for (int v = 0; v < M; ++v) {
      Wide in[K];
      for (int k = 0; k < K; ++k) in[k] = LoadWide(a[k] + at + v * kNativeLanes);
      out[v] = Lanes<op>::Value(in);
    }
#pragma GCC unroll 4
    for (int v = 0; v < M; ++v) Store(y + at + v * kNativeLanes, out[v]);
  });
}

template <Op op>
void SlopesOf(const float* const* a, float* const* s, int64_t n) {
  constexpr int K = program::RowOf(op).operands;
  ForChunks(n, [&]<int M>(int64_t at) {
    Wide out[M][K];
#pragma GCC unroll 4
    for (int v = 0; v < M; ++v) {
      Wide in[K];
      for (int k = 0; k < K; ++k) in[k] = LoadWide(a[k] + at + v * kNativeLanes);
      Lanes<op>::Slopes(in, out[v]);
    }
#pragma GCC unroll 4
    for (int v = 0; v < M; ++v) {
      for (int k = 0; k < K; ++k)
        if (s[k] != nullptr) Store(s[k] + at + v * kNativeLanes, out[v][k]);
    }
  });
}

template <Op op>
DEEPPCR_INLINE void BranchRow(const float* a, const float* b, const float* c, float* y, int64_t n) {
  ForChunks(n, [&]<int M>(int64_t at) {
    Chunk<M> x = Chunk<M>::Of(a + at);
    for (int v = 0; b != nullptr && v < M; ++v)
      x.v[v] = x.v[v] + LoadWide(b + at + v * kNativeLanes);
    Activate(Lanes<op>::kActivation, x.v);
    for (int v = 0; c != nullptr && v < M; ++v)
      x.v[v] = LoadWide(c + at + v * kNativeLanes) + x.v[v];
    x.To(y + at);
  });
}

template <>
DEEPPCR_INLINE void BranchRow<Op::kMultiply>(const float* a, const float* b, const float* c,
                                             float* y, int64_t n) {
  ForVectors(n, [&](int64_t at) {
    const Wide product = LoadWide(a + at) * LoadWide(b + at);
    Store(y + at, product + LoadWide(c + at));
  });
}

template <Op op>
void BranchOf(const BranchArgs& g) {
  for (int64_t r = 0; r < g.rows; ++r) {
    BranchRow<op>(g.a + r * g.a_stride, g.b == nullptr ? nullptr : g.b + r * g.b_stride,
                  g.c == nullptr ? nullptr : g.c + r * g.c_stride, g.y + r * g.n, g.n);
  }
}

inline void SinesAndCosines(const float* a, float* sine, float* cosine, int64_t n) {
  ForChunks(n, [&]<int M>(int64_t at) {
    Wide sines[M], cosines[M];
#pragma GCC unroll 4
    for (int v = 0; v < M; ++v)
      SineAndCosine(LoadWide(a + at + v * kNativeLanes), &sines[v], &cosines[v]);
#pragma GCC unroll 4
    for (int v = 0; v < M; ++v) {
      Store(sine + at + v * kNativeLanes, sines[v]);
      Store(cosine + at + v * kNativeLanes, cosines[v]);
    }
  });
}

inline void Scale(const ScaleArgs& a) {
  for (int64_t r = 0; r < a.rows; ++r) {
    const Wide number = All(a.numbers[r * a.numbers_stride]);
    const float* factors = a.factors + r * a.factors_stride;
    float* out = a.out + r * a.n;
    ForVectors(a.n, [&](int64_t at) { Store(out + at, number * LoadWide(factors + at)); });
  }
}

template <int I = 0>
DEEPPCR_INLINE void FillElementwise(ProgramKernels* table) {
  if constexpr (I < program::kNumOps) {
    constexpr Op op = program::kOps[I].op;
    if constexpr (program::kOps[I].kind == program::OpKind::kElementwise)
      table->elementwise[I] = {&ValueOf<op>, &SlopesOf<op>};
    if constexpr (program::kOps[I].kind == program::OpKind::kElementwise) {
      if constexpr (requires { Lanes<op>::kActivation; } || op == Op::kMultiply)
        table->branch[I] = &BranchOf<op>;
    }
    FillElementwise<I + 1>(table);
  }
}

}  // namespace deeppcr::cpu::DEEPPCR_CPU_ISA

#endif  // DEEPPCR_KERNELS_CPU_PROGRAM_ELEMENTWISE_H_
