#include "reduce.h"

#include "clones.h"

namespace mqgrad {

MQ_CLONES void divide(float* v, int64_t n, float divisor) {
  for (int64_t i = 0; i < n; ++i) v[i] /= divisor;
}

}  // namespace mqgrad
