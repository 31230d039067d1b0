// Stands in for what libgcc knows of the processor, from which the loader chooses among the clones of a function. A
// program linked with it runs those for AVX2, if MQ_FEATURES has the bit of AVX2, or else the baseline's. Names, layout
// and bits are libgcc's interface to compiled code; instruction_set() in instruction_set.h tells what was chosen.
#define HIDDEN __attribute__((visibility("hidden")))

extern "C" {
HIDDEN struct {
  unsigned vendor, type, subtype, features;
} __cpu_model = {1, 0, 0, MQ_FEATURES};
HIDDEN unsigned __cpu_features2[8] = {};
HIDDEN int __cpu_indicator_init() { return 0; }
}
