// The pairs of all workgroups to the result, by one workgroup.

struct Params {
  pairs: u32,
  op: u32,
  count: u32,
}

@group(0) @binding(0) var<storage, read> pairs: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read_write> output: array<u32>;
@group(0) @binding(2) var<uniform> p: Params;

const SUM = 0u;
const MAX = 1u;
const MIN = 2u;
const MEAN = 3u;
const VARIANCE = 4u;

var<workgroup> keys: array<u32, SIZE>;

@compute @workgroup_size(SIZE)
fn main(@builtin(local_invocation_index) local: u32) {
  var best = select(0u, 0xffffffffu, p.op == MIN);
  var sum = vec2(0.0);
  for (var i = local; i < p.pairs; i += SIZE) {
    let pair = pairs[i];
    if p.op == MAX {
      best = max(best, pair.x);
    } else if p.op == MIN {
      best = min(best, pair.x);
    } else {
      sum += bitcast<vec2<f32>>(pair);
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
  if local > 0u {
    return;
  }
  let count = f32(p.count);
  switch p.op {
    case SUM: { output[0] = bitcast<u32>(total.x); }
    case MEAN: { output[0] = bitcast<u32>(total.x / count); }
    case VARIANCE: {
      // The mean that was taken off was rounded: the first term says by how much.
      let off = total.x / count;
      output[0] = bitcast<u32>(total.y / count - off * off);
    }
    default: {
      let best = keys[0];
      if best == select(0xffffffffu, 0u, p.op == MIN) {
        output[0] = 0x7fc00000u;
      } else {
        output[0] = select(~best, best & 0x7fffffffu, (best >> 31u) == 1u);
      }
    }
  }
}
