// Error feedback: what is sent, and what is kept.
#pragma once

#include "float_bits.h"

namespace mqgrad {

// Note [Feedback]
//
// ECQ-SGD (Wu et al. 2018): v = x + alpha h is sent as Q(v), and h' = beta h + (x - Q(v)). Not (v - Q(v)), which forgets
// what rounding to v lost: x - Q(v) and the sum are each off by half a unit in their own last place, so that with
// alpha = beta = 1 what is sent plus what is kept equals what came in to about the last bit of h', however small it is
// beside x.
MQ_INLINE float compensated(float x, float residual, float alpha) {
  return x + alpha * residual;
}

MQ_INLINE float next_residual(float x, float residual, float sent, float beta) {
  return beta * residual + (x - sent);
}

// Where nothing finite would be kept, neither did anything arrive: what was owed stays.
MQ_INLINE float next_finite_residual(float x, float residual, float sent, float beta) {
  const float next = next_residual(x, residual, sent, beta);
  return is_finite(next) ? next : residual;
}

}  // namespace mqgrad
