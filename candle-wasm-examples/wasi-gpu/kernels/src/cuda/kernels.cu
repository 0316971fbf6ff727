// Kernels of wasi:gpu that are not ops of Candle. Buffers are words of 32 bits; blocks have SIZE threads.

#define SIZE 256

typedef unsigned u32;
typedef unsigned long long u64;

static const u32 NOT_A_NUMBER = 0x7fc00000u;
static const u32 INFINITE = 0x7f800000u;

__device__ inline u64 place() {
  return (u64)blockIdx.x * SIZE + threadIdx.x;
}

__device__ inline bool is_nan(u32 bits) {
  return (bits & 0x7fffffffu) > 0x7f800000u;
}

// Orders as the float with these bits; -0 and 0 are equal, and NaN is above everything.
__device__ inline u32 key(u32 bits) {
  if (is_nan(bits)) return 0xffffffffu;
  if (bits << 1 == 0) return 0x80000000u;
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// As key, for what others are compared with: nothing is at most NaN.
__device__ inline u32 threshold_key(u32 bits) {
  return is_nan(bits) ? 0 : key(bits);
}

// The first fault since the status was read stays.
__device__ inline void report(u32* status, u32 code, u32 a, u32 b, u32 c) {
  if (atomicCAS(status, 0u, code) == 0) {
    status[1] = a;
    status[2] = b;
    status[3] = c;
  }
}

struct Pair {
  float x, y;
};

// Sums of a block's threads, in an order that is always the same.
__device__ inline Pair sum_of_block(Pair value) {
  __shared__ float xs[SIZE];
  __shared__ float ys[SIZE];
  u32 local = threadIdx.x;
  xs[local] = value.x;
  ys[local] = value.y;
  for (u32 span = SIZE / 2; span > 0; span /= 2) {
    __syncthreads();
    if (local < span) {
      xs[local] += xs[local + span];
      ys[local] += ys[local + span];
    }
  }
  __syncthreads();
  Pair sum = {xs[0], ys[0]};
  __syncthreads();
  return sum;
}

__device__ inline u32 pcg(u32 v) {
  u32 state = v * 747796405u + 2891336453u;
  u32 word = ((state >> ((state >> 28) + 4)) ^ state) * 277803737u;
  return (word >> 22) ^ word;
}

extern "C" __global__ void bootstrap(u32* indices, u32 count, u32 seed, u32 max) {
  u64 i = place();
  if (i >= count) return;
  u32 surplus = (0u - max) % max;
  u32 x = pcg((u32)i + pcg(seed));
  for (u32 redraw = 0; redraw < 16 && x * max < surplus; redraw++) x = pcg(x);
  indices[i] = (u32)(((u64)x * max) >> 32);
}

// Rows of the nodes that one launch splits; SMALL_NODE of plan.rs.
#define SMALL 1024

__device__ inline float squared_error(Pair sum, u32 count) {
  float error = sum.y - sum.x * sum.x / (float)count;
  // Rounding must not make it negative; NaN stays.
  return error < 0 ? 0 : error;
}

// find-split of a small node: all that the four kernels below do, in the same order of sums. Each block brings all rows together.
extern "C" __global__ void split_small(const u32* data, const float* labels, const u32* indices, const u32* thresholds,
                                       u32* scores, u32* status, u32 count, u32 rows, u32 features, u32 feature, u32 columns) {
  __shared__ u32 keys[SMALL];
  __shared__ float values[SMALL];
  u32 local = threadIdx.x;
  float sums[SMALL / SIZE] = {};
  u32 first = indices[0];
  for (u32 block = 0; block * SIZE < count; block++) {
    u32 i = block * SIZE + local;
    float value = 0;
    if (i < count) {
      u32 index = indices[i];
      u32 order = 0;
      if (index >= rows) {
        report(status, 1, i, index, rows);
      } else {
        // Near the mean, so that equal labels give exactly 0 and large ones lose nothing.
        value = labels[index] - labels[first < rows ? first : rows - 1];
        order = key(data[(u64)index * features + feature]);
      }
      keys[i] = order;
      values[i] = value;
    }
    sums[block] = sum_of_block({value, 0}).x;
  }
  float mean = ((sums[0] + sums[2]) + (sums[1] + sums[3])) / (float)count;
  for (u32 i = local; i < count; i += SIZE) values[i] -= mean;
  __syncthreads();
  u64 column = place();
  if (column >= columns) return;
  u32 own = threshold_key(thresholds[column]);
  u32 left = 0;
  Pair left_sum = {0, 0}, sum = {0, 0};
  for (u32 base = 0; base < count; base += SIZE) {
    u32 end = count - base < SIZE ? count : base + SIZE;
    Pair left_of_tile = {0, 0}, of_tile = {0, 0};
    for (u32 run = base; run < end; run += 32) {
      Pair left_of_run = {0, 0}, of_run = {0, 0};
      for (u32 i = run; i < run + 32 && i < end; i++) {
        float value = values[i];
        float square = value * value;
        if (keys[i] <= own) {
          left++;
          left_of_run.x += value;
          left_of_run.y += square;
        }
        of_run.x += value;
        of_run.y += square;
      }
      left_of_tile.x += left_of_run.x;
      left_of_tile.y += left_of_run.y;
      of_tile.x += of_run.x;
      of_tile.y += of_run.y;
    }
    left_sum.x += left_of_tile.x;
    left_sum.y += left_of_tile.y;
    sum.x += of_tile.x;
    sum.y += of_tile.y;
  }
  u32 score = INFINITE;
  if (left > 0 && left < count) {
    Pair right_sum = {sum.x - left_sum.x, sum.y - left_sum.y};
    score = __float_as_uint(squared_error(left_sum, left) + squared_error(right_sum, count - left));
  }
  scores[column] = score;
}

// find-split, 1: each row's key by the feature, and its label less the first one's.
extern "C" __global__ void split_rows(const u32* data, const float* labels, const u32* indices, u32* keys, float* values,
                                      float* sums, u32* status, u32 count, u32 rows, u32 features, u32 feature) {
  u64 i = place();
  float value = 0;
  if (i < count) {
    u32 index = indices[i];
    u32 order = 0;
    if (index >= rows) {
      report(status, 1, (u32)i, index, rows);
    } else {
      u32 first = indices[0];
      // Near the mean, so that equal labels give exactly 0 and large ones lose nothing.
      value = labels[index] - labels[first < rows ? first : rows - 1];
      order = key(data[(u64)index * features + feature]);
    }
    keys[i] = order;
    values[i] = value;
  }
  Pair sum = sum_of_block({value, 0});
  if (threadIdx.x == 0) sums[blockIdx.x] = sum.x;
}

// find-split, 2: the mean of the values, by one block.
extern "C" __global__ void split_mean(const float* sums, float* mean, u32 blocks, u32 count) {
  float value = 0;
  for (u32 i = threadIdx.x; i < blocks; i += SIZE) value += sums[i];
  Pair sum = sum_of_block({value, 0});
  if (threadIdx.x == 0) mean[0] = sum.x / (float)count;
}

// find-split, 3: for each threshold and slice of the rows, how many rows go left, and their sums about the node's mean. One more column,
// the last, has all rows.
extern "C" __global__ void split_sums(const u32* keys, const float* values, const float* mean, const u32* thresholds, u32* sums,
                                      u32 count, u32 first, u32 columns, u32 tiles, u32 blocks) {
  __shared__ u32 tile_keys[SIZE];
  __shared__ float tile_values[SIZE];
  u32 local = threadIdx.x;
  u64 column = (u64)(blockIdx.x % blocks) * SIZE + local;
  u64 slice = blockIdx.x / blocks;
  u32 own = column < columns ? threshold_key(thresholds[first + column]) : 0xffffffffu;
  u32 left = 0;
  Pair sum = {0, 0};
  for (u32 tile = 0; tile < tiles; tile++) {
    u64 base = (slice * tiles + tile) * SIZE;
    if (base >= count) break;
    __syncthreads();
    if (base + local < count) {
      tile_keys[local] = keys[base + local];
      tile_values[local] = values[base + local] - mean[0];
    }
    __syncthreads();
    u32 end = count - base < SIZE ? (u32)(count - base) : SIZE;
    // Three levels, so that rounding errors stay far below a millionth.
    Pair of_tile = {0, 0};
    for (u32 run = 0; run < end; run += 32) {
      Pair of_run = {0, 0};
      for (u32 i = run; i < run + 32 && i < end; i++) {
        if (tile_keys[i] <= own) {
          float value = tile_values[i];
          left++;
          of_run.x += value;
          of_run.y += value * value;
        }
      }
      of_tile.x += of_run.x;
      of_tile.y += of_run.y;
    }
    sum.x += of_tile.x;
    sum.y += of_tile.y;
  }
  if (column <= columns) {
    u32* to = sums + (slice * (columns + 1ull) + column) * 3;
    to[0] = left;
    to[1] = __float_as_uint(sum.x);
    to[2] = __float_as_uint(sum.y);
  }
}

// find-split, 4: slices joined, and the squared errors of both sides.
extern "C" __global__ void split_scores(const u32* sums, u32* scores, u32 first, u32 columns, u32 slices) {
  u64 column = place();
  if (column >= columns) return;
  u32 left = 0, count = 0;
  Pair left_sum = {0, 0}, sum = {0, 0};
  for (u32 run = 0; run < slices; run += 128) {
    Pair left_run = {0, 0}, all_run = {0, 0};
    for (u32 slice = run; slice < run + 128 && slice < slices; slice++) {
      const u32* own = sums + (slice * (columns + 1ull) + column) * 3;
      const u32* every = sums + (slice * (columns + 1ull) + columns) * 3;
      left += own[0];
      count += every[0];
      left_run.x += __uint_as_float(own[1]);
      left_run.y += __uint_as_float(own[2]);
      all_run.x += __uint_as_float(every[1]);
      all_run.y += __uint_as_float(every[2]);
    }
    left_sum.x += left_run.x;
    left_sum.y += left_run.y;
    sum.x += all_run.x;
    sum.y += all_run.y;
  }
  u32 score = INFINITE;
  if (left > 0 && left < count) {
    Pair right_sum = {sum.x - left_sum.x, sum.y - left_sum.y};
    score = __float_as_uint(squared_error(left_sum, left) + squared_error(right_sum, count - left));
  }
  scores[first + column] = score;
}

// Means of rows: a block a row.
extern "C" __global__ void average(const float* values, float* output, u32 trees) {
  const float* row = values + (u64)blockIdx.x * trees;
  float value = 0;
  for (u64 i = threadIdx.x; i < trees; i += SIZE) value += row[i];
  Pair sum = sum_of_block({value, 0});
  if (threadIdx.x == 0) output[blockIdx.x] = sum.x / (float)trees;
}

// matmul's end. With bit 0 of reads there is a product; with bit 1, C is read.
extern "C" __global__ void accumulate(const float* product, float* c, u64 count, float alpha, float beta, u32 reads) {
  u64 i = place();
  if (i >= count) return;
  float value = reads & 1 ? alpha * product[i] : 0;
  if (reads & 2) value += beta * c[i];
  c[i] = value;
}

extern "C" __global__ void elementwise(const float* a, const float* b, float* output, u32 count, u32 op) {
  u64 i = place();
  if (i >= count) return;
  float x = a[i];
  float y = 0;
  switch (op) {
    case 0: y = x > 0 ? x : 0; break;
    case 1: y = 1 / (1 + expf(-x)); break;
    case 2: y = tanhf(x); break;
    case 3: y = x + b[i]; break;
    case 4: y = x * b[i]; break;
    case 5: y = sqrtf(x); break;
    case 6: y = expf(x); break;
    default: y = logf(x);
  }
  output[i] = y;
}

// reduce, 1: elements to one pair a block. op: sum, max, min, differences from the first element, differences from the mean and squares.
extern "C" __global__ void reduce(const u32* input, const float* mean, u32* pairs, u32 count, u32 op) {
  __shared__ u32 keys[SIZE];
  u32 local = threadIdx.x;
  u64 base = (u64)blockIdx.x * (SIZE * 64);
  u32 best = op == 2 ? 0xffffffffu : 0;
  Pair sum = {0, 0};
  for (u32 i = 0; i < 64; i++) {
    u64 at = base + i * SIZE + local;
    if (at >= count) break;
    u32 bits = input[at];
    float x = __uint_as_float(bits);
    if (op == 0) {
      sum.x += x;
    } else if (op == 1) {
      best = max(best, key(bits));
    } else if (op == 2) {
      best = min(best, threshold_key(bits));
    } else {
      float d = x - __uint_as_float(input[0]);
      if (op == 4) d -= mean[0];
      sum.x += d;
      sum.y += d * d;
    }
  }
  Pair total = sum_of_block(sum);
  keys[local] = best;
  for (u32 span = SIZE / 2; span > 0; span /= 2) {
    __syncthreads();
    if (local < span) {
      u32 other = keys[local + span];
      keys[local] = op == 2 ? min(keys[local], other) : max(keys[local], other);
    }
  }
  if (local == 0) {
    bool is_key = op == 1 || op == 2;
    pairs[2 * (u64)blockIdx.x] = is_key ? keys[0] : __float_as_uint(total.x);
    pairs[2 * (u64)blockIdx.x + 1] = __float_as_uint(total.y);
  }
}

// reduce, 2: the pairs to the result, by one block. op: sum, max, min, mean, variance.
extern "C" __global__ void reduce_end(const u32* pairs, u32* output, u32 blocks, u32 op, u32 count) {
  __shared__ u32 keys[SIZE];
  u32 local = threadIdx.x;
  u32 best = op == 2 ? 0xffffffffu : 0;
  Pair sum = {0, 0};
  for (u32 i = local; i < blocks; i += SIZE) {
    u32 x = pairs[2 * (u64)i];
    if (op == 1) {
      best = max(best, x);
    } else if (op == 2) {
      best = min(best, x);
    } else {
      sum.x += __uint_as_float(x);
      sum.y += __uint_as_float(pairs[2 * (u64)i + 1]);
    }
  }
  Pair total = sum_of_block(sum);
  keys[local] = best;
  for (u32 span = SIZE / 2; span > 0; span /= 2) {
    __syncthreads();
    if (local < span) {
      u32 other = keys[local + span];
      keys[local] = op == 2 ? min(keys[local], other) : max(keys[local], other);
    }
  }
  if (local > 0) return;
  float n = (float)count;
  float off = total.x / n;
  if (op == 0) {
    output[0] = __float_as_uint(total.x);
  } else if (op == 3) {
    output[0] = __float_as_uint(off);
  } else if (op == 4) {
    // The mean that was taken off was rounded: the second term says by how much.
    output[0] = __float_as_uint(total.y / n - off * off);
  } else {
    u32 nan = op == 2 ? 0 : 0xffffffffu;
    best = keys[0];
    output[0] = best == nan ? NOT_A_NUMBER : best >> 31 ? best & 0x7fffffffu : ~best;
  }
}

// batch-predict, 1: walks down trees. A thread has a sample and a block of trees. If a walk may be longer than a launch allows, a block is
// one tree, and the next launch continues.
extern "C" __global__ void predict(const u32* samples, const uint4* nodes, const u32* offsets, u32* state, u32* status,
                                   u32 first_sample, u32 count, u32 features, u32 first_tree, u32 trees, u32 block,
                                   u32 node_count, u32 depth, u32 done, u32 turns, u32 threads) {
  const u32 DONE = 0xffffffffu, LEAF = 0xffffffffu;
  u64 id = place();
  if (id >= threads) return;
  u32 sample = first_sample + (u32)(id % count);
  u64 tree = first_tree + id / count * block;
  u64 end = tree + block < (u64)first_tree + trees ? tree + block : (u64)first_tree + trees;
  u32 node = 0;
  if (done > 0) {
    node = state[2 * id];
    if (node == DONE) return;
  }
  float sum = 0;
  for (; tree < end; tree++) {
    u32 root = offsets[tree];
    u32 leaf = NOT_A_NUMBER;
    bool arrived = false;
    if (root >= node_count) {
      report(status, 2, (u32)tree, root, node_count);
      arrived = true;
    }
    for (u32 turn = 0; turn < turns && !arrived; turn++) {
      uint4 here = nodes[(u64)root + node];
      if (here.x == LEAF) {
        leaf = here.y;
        arrived = true;
      } else if (done + turn == depth) {
        report(status, 5, (u32)tree, sample, node);
        arrived = true;
      } else if (here.x >= features) {
        report(status, 4, (u32)tree, sample, here.x);
        arrived = true;
      } else {
        u32 value = samples[(u64)sample * features + here.x];
        u32 child = key(value) <= threshold_key(here.y) ? here.z : here.w;
        if (child >= node_count - root) {
          report(status, 3, (u32)tree, sample, child);
          arrived = true;
        } else {
          node = child;
        }
      }
    }
    if (!arrived) {
      state[2 * id] = node;
      return;
    }
    sum += __uint_as_float(leaf);
    node = 0;
  }
  state[2 * id] = DONE;
  state[2 * id + 1] = __float_as_uint(sum);
}

// batch-predict, 2: the blocks' sums joined. The first launch sets the output; the last one, with trees above 0, divides.
extern "C" __global__ void predict_mean(const u32* state, float* output, u32 first_sample, u32 count, u32 blocks, u32 is_first,
                                        u32 trees) {
  u64 id = place();
  if (id >= count) return;
  float sum = 0;
  for (u32 block = 0; block < blocks; block++) sum += __uint_as_float(state[2 * ((u64)block * count + id) + 1]);
  float* to = output + first_sample + id;
  if (!is_first) sum += *to;
  *to = trees > 0 ? sum / (float)trees : sum;
}
