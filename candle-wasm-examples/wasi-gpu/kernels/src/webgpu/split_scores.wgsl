// find-split, 4: slices joined, and the squared errors of both sides.

struct Params {
  first: u32,
  thresholds: u32,
  slices: u32,
}

@group(0) @binding(0) var<storage, read> sums: array<u32>;
@group(0) @binding(1) var<storage, read_write> scores: array<u32>;
@group(0) @binding(2) var<uniform> p: Params;

const RUN = 128u;

fn at(slice: u32, column: u32) -> u32 {
  return (slice * (p.thresholds + 1u) + column) * 3u;
}

fn pair(place: u32) -> vec2<f32> {
  return vec2(bitcast<f32>(sums[place + 1u]), bitcast<f32>(sums[place + 2u]));
}

@compute @workgroup_size(SIZE)
fn main(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) local: u32,
) {
  let column = flat(group, groups) * SIZE + local;
  if column >= p.thresholds {
    return;
  }
  var left = 0u;
  var count = 0u;
  var left_sum = vec2(0.0);
  var sum = vec2(0.0);
  for (var run = 0u; run < p.slices; run += RUN) {
    var left_run = vec2(0.0);
    var all_run = vec2(0.0);
    for (var slice = run; slice < min(run + RUN, p.slices); slice++) {
      let own = at(slice, column);
      let every = at(slice, p.thresholds);
      left += sums[own];
      count += sums[every];
      left_run += pair(own);
      all_run += pair(every);
    }
    left_sum += left_run;
    sum += all_run;
  }
  var score = 0x7f800000u;
  if left > 0u && left < count {
    score = bitcast<u32>(squared_error(left_sum, left) + squared_error(sum - left_sum, count - left));
  }
  scores[p.first + column] = score;
}
