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

// Where nothing finite would be kept, what was owed stays: nothing has arrived, or x and what is sent for it are too far
// apart for a float (as large elements are from 0, or from a level beside them that was drawn at random).
MQ_INLINE float next_residual(float x, float residual, float sent, float beta) {
  const float next = beta * residual + (x - sent);
  return is_finite(next) ? next : residual;
}

}  // namespace mqgrad
