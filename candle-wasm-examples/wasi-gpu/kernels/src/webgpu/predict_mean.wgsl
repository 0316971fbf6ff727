// batch-predict, 2: the blocks' sums joined. The first dispatch sets the output, the last one divides.

struct Params {
  first_sample: u32,
  samples: u32,
  blocks: u32,
  is_first: u32,
  // 0 unless this is the last.
  trees: u32,
}

@group(0) @binding(0) var<storage, read> state: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read_write> output: array<f32>;
@group(0) @binding(2) var<uniform> p: Params;

@compute @workgroup_size(SIZE)
fn main(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) local: u32,
) {
  let id = flat(group, groups) * SIZE + local;
  if id >= p.samples {
    return;
  }
  var sum = 0.0;
  for (var block = 0u; block < p.blocks; block++) {
    sum += bitcast<f32>(state[block * p.samples + id].y);
  }
  let sample = p.first_sample + id;
  if p.is_first == 0u {
    sum += output[sample];
  }
  if p.trees > 0u {
    sum /= f32(p.trees);
  }
  output[sample] = sum;
}
