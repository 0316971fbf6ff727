// find-split, 1: the node's rows, brought together: each one's key by the feature, and its label less the first one's.

struct Params {
  count: u32,
  rows: u32,
  features: u32,
  feature: u32,
}

@group(0) @binding(0) var<storage, read> data: array<u32>;
@group(0) @binding(1) var<storage, read> labels: array<f32>;
@group(0) @binding(2) var<storage, read> indices: array<u32>;
@group(0) @binding(3) var<storage, read_write> keys: array<u32>;
@group(0) @binding(4) var<storage, read_write> values: array<f32>;
// The sum of each workgroup's values.
@group(0) @binding(5) var<storage, read_write> sums: array<f32>;
@group(0) @binding(6) var<storage, read_write> status: array<atomic<u32>>;
@group(0) @binding(7) var<uniform> p: Params;

@compute @workgroup_size(SIZE)
fn main(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) local: u32,
) {
  let i = flat(group, groups) * SIZE + local;
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
  let sum = sum_of_group(local, vec2(value, 0.0));
  if local == 0u && i < p.count {
    sums[i / SIZE] = sum.x;
  }
}
