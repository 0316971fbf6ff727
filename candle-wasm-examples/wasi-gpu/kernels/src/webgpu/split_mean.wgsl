// find-split, 2: the mean of the values, by one workgroup.

struct Params {
  groups: u32,
  count: u32,
}

@group(0) @binding(0) var<storage, read> sums: array<f32>;
@group(0) @binding(1) var<storage, read_write> mean: array<f32>;
@group(0) @binding(2) var<uniform> p: Params;

@compute @workgroup_size(SIZE)
fn main(@builtin(local_invocation_index) local: u32) {
  var value = 0.0;
  for (var i = local; i < p.groups; i += SIZE) {
    value += sums[i];
  }
  let sum = sum_of_group(local, vec2(value, 0.0));
  if local == 0u {
    mean[0] = sum.x / f32(p.count);
  }
}
