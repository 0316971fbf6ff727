// TYPE is the type of elements.

extern "C" __global__ void fill(TYPE* to, TYPE value, unsigned count) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) to[i] = value;
}

// to = x * by + add. `info` is null for a contiguous x, else its dimensions and then its strides.
extern "C" __global__ void scale(TYPE* to, const TYPE* x, const size_t* info, size_t rank, TYPE by, TYPE add, size_t count) {
  size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
  if (i >= count) return;
  size_t from = i;
  if (info) {
    size_t rest = i;
    from = 0;
    for (size_t d = rank; d-- > 0; rest /= info[d]) from += rest % info[d] * info[rank + d];
  }
  to[i] = x[from] * by + add;
}

// to = a - b * 2, of contiguous operands.
extern "C" __global__ void minus_twice(TYPE* to, const TYPE* a, const TYPE* b, size_t count) {
  size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
  if (i < count) to[i] = a[i] - b[i] * (TYPE)2;
}
