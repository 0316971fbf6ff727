// find-split of a small node: all that the four kernels of larger ones do, in the same order of sums. Each workgroup brings all rows together.

struct Params {
  count: u32,
  rows: u32,
  features: u32,
  feature: u32,
  thresholds: u32,
}

@group(0) @binding(0) var<storage, read> data: array<u32>;
@group(0) @binding(1) var<storage, read> labels: array<f32>;
@group(0) @binding(2) var<storage, read> indices: array<u32>;
@group(0) @binding(3) var<storage, read> thresholds: array<u32>;
@group(0) @binding(4) var<storage, read_write> scores: array<u32>;
@group(0) @binding(5) var<storage, read_write> status: array<atomic<u32>>;
@group(0) @binding(6) var<uniform> p: Params;

const RUN = 32u;
// SMALL_NODE of plan.rs.
const SMALL = 1024u;

var<workgroup> keys: array<u32, SMALL>;
var<workgroup> values: array<f32, SMALL>;

@compute @workgroup_size(SIZE)
fn main(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) local: u32,
) {
  // Of each quarter of the rows that there is.
  var sums = vec4(0.0);
  for (var part = 0u; part * SIZE < p.count; part++) {
    let i = part * SIZE + local;
    var value = 0.0;
    if i < p.count {
      let index = indices[i];
      var order = 0u;
      if index >= p.rows {
        report(1u, i, index, p.rows);
      } else {
        // Near the mean, so that equal labels give exactly 0 and large ones lose nothing.
        value = labels[index] - labels[min(indices[0], p.rows - 1u)];
        order = key(data[index * p.features + p.feature]);
      }
      keys[i] = order;
      values[i] = value;
    }
    workgroupBarrier();
    sums[part] = sum_of_group(local, vec2(value, 0.0)).x;
  }
  let mean = ((sums[0] + sums[2]) + (sums[1] + sums[3])) / f32(p.count);
  for (var i = local; i < p.count; i += SIZE) {
    values[i] -= mean;
  }
  workgroupBarrier();
  let column = flat(group, groups) * SIZE + local;
  if column >= p.thresholds {
    return;
  }
  let own = threshold_key(thresholds[column]);
  var left = 0u;
  var left_sum = vec2(0.0);
  var sum = vec2(0.0);
  for (var base = 0u; base < p.count; base += SIZE) {
    let end = min(base + SIZE, p.count);
    var left_of_tile = vec2(0.0);
    var of_tile = vec2(0.0);
    for (var run = base; run < end; run += RUN) {
      var left_of_run = vec2(0.0);
      var of_run = vec2(0.0);
      for (var i = run; i < min(run + RUN, end); i++) {
        let value = vec2(values[i], values[i] * values[i]);
        if keys[i] <= own {
          left++;
          left_of_run += value;
        }
        of_run += value;
      }
      left_of_tile += left_of_run;
      of_tile += of_run;
    }
    left_sum += left_of_tile;
    sum += of_tile;
  }
  var score = 0x7f800000u;
  if left > 0u && left < p.count {
    score = bitcast<u32>(squared_error(left_sum, left) + squared_error(sum - left_sum, p.count - left));
  }
  scores[column] = score;
}
