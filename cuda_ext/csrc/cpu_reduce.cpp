#include "reduce.h"

#include <cmath>

#include "clones.h"

namespace mqgrad {

MQ_CLONES void divide(float* v, int64_t n, float divisor) {
  int exponent;
  if (std::frexp(divisor, &exponent) == 0.5f) {  // a power of two, whose inverse is exact
    const float inverse = 1.0f / divisor;
    for (int64_t i = 0; i < n; ++i) v[i] *= inverse;
  } else {
    for (int64_t i = 0; i < n; ++i) v[i] /= divisor;
  }
}

}  // namespace mqgrad
