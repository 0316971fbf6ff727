// Elements to one pair for each workgroup.

struct Params {
  count: u32,
  op: u32,
}

@group(0) @binding(0) var<storage, read> input: array<u32>;
// For DEVIATION: the mean of what SHIFTED adds up.
@group(0) @binding(1) var<storage, read> mean: array<f32>;
@group(0) @binding(2) var<storage, read_write> pairs: array<vec2<u32>>;
@group(0) @binding(3) var<uniform> p: Params;

const SUM = 0u;
const MAX = 1u;
const MIN = 2u;
// Differences from the first element.
const SHIFTED = 3u;
// Differences from the mean, and their squares.
const DEVIATION = 4u;
const EACH = 64u;

var<workgroup> keys: array<u32, SIZE>;

@compute @workgroup_size(SIZE)
fn main(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) local: u32,
) {
  let number = flat(group, groups);
  let base = number * (SIZE * EACH);
  // What changes nothing. NaN is the greatest for MAX, and the least for MIN.
  var best = select(0u, 0xffffffffu, p.op == MIN);
  var sum = vec2(0.0);
  for (var i = 0u; i < EACH; i++) {
    let at = base + i * SIZE + local;
    if at >= p.count {
      break;
    }
    let bits = input[at];
    let x = bitcast<f32>(bits);
    switch p.op {
      case SUM: { sum.x += x; }
      case MAX: { best = max(best, key(bits)); }
      case MIN: { best = min(best, threshold_key(bits)); }
      default: {
        var d = x - bitcast<f32>(input[0]);
        if p.op == DEVIATION {
          d -= mean[0];
        }
        sum += vec2(d, d * d);
      }
    }
  }
  let total = sum_of_group(local, sum);
  keys[local] = best;
  for (var span = SIZE / 2u; span > 0u; span /= 2u) {
    workgroupBarrier();
    if local < span {
      keys[local] = select(max(keys[local], keys[local + span]), min(keys[local], keys[local + span]), p.op == MIN);
    }
  }
  if local == 0u && base < p.count {
    if p.op == MAX || p.op == MIN {
      pairs[number] = vec2(keys[0], 0u);
    } else {
      pairs[number] = bitcast<vec2<u32>>(total);
    }
  }
}
